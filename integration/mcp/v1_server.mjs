import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';
import { listen, pay, progress, question, result, sessions } from './serve.mjs';

listen(sessions(StreamableHTTPServerTransport, () => {
	const server = new McpServer({ name: 'v1', version: '1' });
	server.registerTool('pay', {
		inputSchema: { idempotency_key: z.string(), amount: z.number() },
		outputSchema: { run: z.number() },
	}, async ({ idempotency_key }, { requestId, signal, sendNotification, _meta }) => {
		await sendNotification(progress(_meta.progressToken));
		let paid = await pay(idempotency_key, '', signal);
		while (paid.state) {
			await server.server.elicitInput(question, { relatedRequestId: requestId });
			paid = await pay(idempotency_key, paid.state, signal);
		}
		return result(paid);
	});
	return server;
}));
