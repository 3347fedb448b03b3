import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { listen, pay, progress, question, result, sessions } from './serve.mjs';

function newServer() {
	const server = new McpServer({ name: 'v2', version: '1' });
	server.registerTool('pay', {
		inputSchema: z.object({ idempotency_key: z.string(), amount: z.number() }),
		outputSchema: z.object({ run: z.number() }),
	}, async ({ idempotency_key }, { mcpReq }) => {
		await mcpReq.notify(progress(mcpReq._meta.progressToken));
		const paid = await pay(idempotency_key, mcpReq.requestState() ?? '', mcpReq.signal);
		if (!paid.state) return result(paid);
		return inputRequired({ inputRequests: { ask: inputRequired.elicit(question) }, requestState: paid.state });
	});
	return server;
}

const legacy = sessions(NodeStreamableHTTPServerTransport, newServer);
const json = toNodeHandler(createMcpHandler(newServer, { responseMode: 'json' }));
const events = toNodeHandler(createMcpHandler(newServer, { responseMode: 'sse' }));
listen((req, res) => (req.url.includes('/legacy/') ? legacy : req.url.endsWith('/json') ? json : events)(req, res));
