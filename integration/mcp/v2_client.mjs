import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { drive, options } from './drive.mjs';

const [url, version] = process.argv.slice(2);
await drive(async () => {
	const client = new Client({ name: 'v2', version: '1' }, {
		capabilities: { elicitation: { form: {} } },
		versionNegotiation: { mode: version ? { pin: version } : 'legacy' },
	});
	client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { yes: true } }));
	const transport = new StreamableHTTPClientTransport(new URL(url), options);
	await client.connect(transport);
	await client.listTools(); // it checks results by their schemas
	return { transport, callTool: (params, options) => client.callTool(params, options) };
});
