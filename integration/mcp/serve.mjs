// What the servers have in common. The test's address is the first argument of each.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

// listen serves on a free port of this machine, prints it, and exits with the test.
export function listen(handle) {
	createServer(handle).listen(0, '127.0.0.1', function () { console.log(this.address().port); });
	process.stdin.resume().on('end', () => process.exit());
}

// sessions returns a handler of all kinds of servers, by the end of the path: with a transport, and a server, for
// each session, or for each request of a stateless one.
export function sessions(Transport, newServer) {
	const open = new Map();
	return async (req, res) => {
		const kind = req.url.split('/').at(-1);
		let transport = open.get(req.headers['mcp-session-id']);
		if (!transport) {
			transport = new Transport({
				sessionIdGenerator: kind === 'stateless' ? undefined : randomUUID,
				enableJsonResponse: kind === 'json',
				eventStore: kind === 'events' ? new Events() : undefined,
				onsessioninitialized: id => open.set(id, transport),
				onsessionclosed: id => open.delete(id),
			});
			await newServer().connect(transport);
		}
		await transport.handleRequest(req, res);
	};
}

// Events keeps the events of a session, so that its streams can be resumed.
class Events {
	#kept = [];

	async storeEvent(stream, message) {
		return `${stream}:${this.#kept.push({ stream, message }) - 1}`;
	}

	async getStreamIdForEventId(id) {
		return id.split(':')[0];
	}

	async replayEventsAfter(id, { send }) {
		const [stream, last] = id.split(':');
		for (const [i, event] of this.#kept.entries()) {
			if (i > last && event.stream === stream) await send(`${stream}:${i}`, event.message);
		}
		return stream;
	}
}

// pay asks the test what a payment comes to: {run, failed}, or {state} where it asks first.
export async function pay(key, state, signal) {
	const query = new URLSearchParams({ key, state });
	return (await fetch(`${process.argv[2]}?${query}`, { method: 'POST', signal })).json();
}

// result is that of the tool.
export const result = ({ run, failed }) => ({
	content: [{ type: 'text', text: `run ${run}` }],
	structuredContent: { run },
	isError: failed,
});

export const question = {
	message: 'Pay?',
	requestedSchema: { type: 'object', properties: { yes: { type: 'boolean' } }, required: ['yes'] },
};

export const progress = token => ({ method: 'notifications/progress', params: { progressToken: token, progress: 1 } });
