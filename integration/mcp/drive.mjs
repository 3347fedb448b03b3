// What a test drives a client with: lines of JSON. {n, params} calls a tool, {n, cancel: true}
// cancels that call. A client prints {n, result} or {n, error}, and for each POST
// {method, status}.
import { createInterface } from 'node:readline';

const print = message => console.log(JSON.stringify(message));

// fetch is the one of clients.
export async function fetch(url, init) {
	const answer = await globalThis.fetch(url, init);
	if (init?.method === 'POST') print({ method: JSON.parse(init.body).method, status: answer.status });
	return answer;
}

// drive calls tools as the test says, and exits with it.
export async function drive(callTool) {
	const calls = new Map();
	for await (const line of createInterface({ input: process.stdin })) {
		const { n, params, cancel } = JSON.parse(line);
		if (cancel) {
			calls.get(n).abort('cancelled'); // what the timeout of a call does, too
			continue;
		}
		calls.set(n, new AbortController());
		callTool(params, { signal: calls.get(n).signal, onprogress() {} }).then(
			result => print({ n, result }),
			({ code, message, data }) => print({ n, error: { code: Number(code), message, data } }),
		);
	}
	process.exit();
}
