import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { drive, fetch } from './drive.mjs';

const [url, version] = process.argv.slice(2);
const client = new Client({ name: 'v2', version: '1' }, {
	capabilities: { elicitation: { form: {} } },
	versionNegotiation: { mode: version ? { pin: version } : 'legacy' },
});
client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { yes: true } }));
await client.connect(new StreamableHTTPClientTransport(new URL(url), { fetch }));
await client.listTools(); // it checks results by their schemas
await drive((params, options) => client.callTool(params, options));
