import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { drive, options } from './drive.mjs';

await drive(async () => {
	const client = new Client({ name: 'v1', version: '1' }, { capabilities: { elicitation: {} } });
	client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { yes: true } }));
	const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]), options);
	await client.connect(transport);
	await client.listTools(); // it checks results by their schemas
	return { transport, callTool: (params, options) => client.callTool(params, undefined, options) };
});
