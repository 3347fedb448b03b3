// What a test drives a client with: lines of JSON. {n, params} calls a tool, {n, cancel: true} cancels that
// call, {reopen: true} ends the session and connects again. A client prints {n, result} or {n, error},
// {n, progress: true} when a call begins to run, {reopened: true}, and for each POST and DELETE
// {method, status}.
import { createInterface } from 'node:readline';

const print = message => console.log(JSON.stringify(message));

// options are those of transports.
export const options = {
	async fetch(url, init) {
		const answer = await globalThis.fetch(url, init);
		if (init?.method === 'POST') print({ method: JSON.parse(init.body).method, status: answer.status });
		if (init?.method === 'DELETE') print({ method: 'DELETE', status: answer.status });
		return answer;
	},
	reconnectionOptions: { initialReconnectionDelay: 50, maxReconnectionDelay: 1000, reconnectionDelayGrowFactor: 1.5, maxRetries: 2 },
};

// drive calls tools as the test says, and exits with it. connect returns {transport, callTool}.
export async function drive(connect) {
	const calls = new Map();
	let { transport, callTool } = await connect();
	for await (const line of createInterface({ input: process.stdin })) {
		const { n, params, cancel, reopen } = JSON.parse(line);
		if (reopen) {
			await transport.terminateSession();
			await transport.close();
			({ transport, callTool } = await connect());
			print({ reopened: true });
			continue;
		}
		if (cancel) {
			calls.get(n).abort('cancelled'); // what the timeout of a call does, too
			continue;
		}
		calls.set(n, new AbortController());
		callTool(params, { signal: calls.get(n).signal, onprogress() { print({ n, progress: true }); } }).then(
			result => print({ n, result }),
			({ code, message, data }) => print({ n, error: { code: Number(code), message, data } }),
		);
	}
	process.exit();
}
