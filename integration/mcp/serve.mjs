// What the servers have in common. The test's address is the first argument of each.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

// listen serves on a free port of this machine, prints it, and exits with the test.
export function listen(handle) {
	createServer(handle).listen(0, '127.0.0.1', function () { console.log(this.address().port); });
	process.stdin.resume().on('end', () => process.exit());
}

// sessions returns a handler with a transport, and a server, for each session.
export function sessions(Transport, newServer) {
	const open = new Map();
	return async (req, res) => {
		let transport = open.get(req.headers['mcp-session-id']);
		if (!transport) {
			transport = new Transport({
				sessionIdGenerator: randomUUID,
				enableJsonResponse: req.url.endsWith('/json'),
				onsessioninitialized: id => open.set(id, transport),
			});
			await newServer().connect(transport);
		}
		await transport.handleRequest(req, res);
	};
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
