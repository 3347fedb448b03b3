import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { drive, fetch } from './drive.mjs';

const client = new Client({ name: 'v1', version: '1' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { yes: true } }));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2]), { fetch }));
await client.listTools(); // it checks results by their schemas
await drive((params, options) => client.callTool(params, undefined, options));
