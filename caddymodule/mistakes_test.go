package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// mistakes has a configuration a line, with \n for a line end, and what its error says. In front of
// that may stand the line that the error names; without it, that is the second one, on which the block
// of a directive begins. "ok" is for what is right. Below each heading stand configurations of one kind.
const mistakes = `
## lines of dedup

# An unset variable leaves an empty argument, which differs from a missing one.
docs ""                                           => docs: "" is not an absolute URL
release_if                                        => release_if lacks its arguments
release_if ""                                     => release_if: the JSON pointer is empty
release_if /a ""                                  => release_if: a value is empty
key                                               => key lacks its source
key header X-Id ""                                => key header: the prefix is empty
key content ""                                    => key content: the prefix is empty
key json ""                                       => key json is empty
key parts "" {\ncontent\n}                        => key: parts have no prefix
key parts p {\nheader X-Id ""\n}                  => 3: header: the prefix is empty
key parts p                                       => key parts lacks its block; use one with lines of header <field>
keep_header                                       => keep_header lacks its arguments
retention_from                                    => retention_from lacks its source
retention_from header                             => retention_from header has the wrong number of arguments
retention_from json ""                            => retention_from json is empty
observe on                                        => observe takes no argument
max_key_length ten                                => max_key_length: "ten" is not a whole number from 1 to
store                                             => store takes file, memory or redis
store sqlite                                      => store: "sqlite" is not accepted; use file, memory or redis
store file ""                                     => store file: the path is empty
store redis ""                                    => redis URL
store redis                                       => store redis: no server is set
store redis {\ntimeout 1s\n}                      => store redis: no server is set
store redis {\naddress ""\n}                      => 3: store redis: address: redis address "" is neither host:port nor
store redis {\nusername ""\n}                     => 3: username is empty
store redis {\nsentinel m\nsentinel_password ""\n} => 4: sentinel_password is empty
store redis {\ntls {\nca ""\n}\n}                 => 4: tls: ca: it is empty
store redis redis://a {\nprefix ""\n}             => 3: store redis: prefix: the text is empty

# What is there twice.
release_on 5xx 409 5xx                            => release_on: 5xx is named twice
release_if /status RETRY DROP RETRY               => release_if: RETRY is named twice
release_if /status RETRY\nrelease_if /status DROP => 3: release_if: /status is named twice; write all its values on one line
scope {http.request.host} a {http.request.host}   => scope: {http.request.host} is named twice
keep_header Age age                               => keep_header: age is named twice
methods POST post                                 => methods: POST is named twice
exclude ?ts ?ts                                   => exclude: ?ts is named twice
key header X-Id\nkey header x-id orders           => 3: key: header x-id is read twice
key form token\nkey form token                    => 3: key: form token is read twice
key parts p {\nheader X-Shop\nheader x-shop\n}    => key: header x-shop is repeated among the parts
key parts p {\nheader A\njson /a optional\njson /a\n} => key: json /a is repeated among the parts
key parts p {\ncontent\nheader A\ncontent optional\n} => key: content is repeated among the parts
key parts p {\njson /a\njson /A\nheader a\n}      => ok
store redis {\naddress a:1 b:1 A:1\n}             => 3: store redis: address: redis address "A:1" is named twice
store redis {\naddress {env.A} {env.A}\n}         => 3: store redis: address: redis address "{env.A}" is named twice
lease 1s\nlease 2s                                => 3: dedup: lease is repeated; write it once

# A * and a ! that stand for nothing, and lists in one word: taken literally, no request would match.
methods *                                         => methods: "*" is not a wildcard for methods; name each of them
methods POST ANY                                  => methods: "ANY" is not a wildcard
methods POST,PUT                                  => methods: "POST,PUT" is not a method; write each by itself, such as POST PUT
methods "post|put" delete                         => such as POST PUT
methods POST GET                                  => methods: GET is never deduplicated; use methods that change something
methods CONNECT                                   => methods: CONNECT is never deduplicated
keep_header *                                     => keep_header: "*" is not a wildcard for fields
keep_header Connection                            => keep_header: Connection describes one connection or one request and cannot be kept
force *-Force                                     => force: "*-Force"
key header X-*                                    => key: header "X-*"
retention_from header X-*                         => retention_from: header "X-*"
release_if /errors /failures                      => release_if: "/failures" is no value; each JSON pointer has a line of its own
release_if /status !SUCCESS                       => release_if: "!SUCCESS" is no value; name the values after which a retry runs
release_if /status {env.FAILED}                   => release_if: "{env.FAILED}" is no value; no placeholder is replaced there
release_if /status RETRY,DROP                     => release_if: "RETRY,DROP" is no value; write the values apart, as in RETRY DROP
release_if /status OK 4XX                         => release_if: "4XX" is no value; a class of statuses is a word of release_on
release_if /message "hello, world"                => ok
release_on 5XX                                    => release_on: "5XX" is not accepted; write 5xx
release_on 5xx,!503                               => release_on: "5xx,!503" is not accepted; write 5xx !503
release_on off,5xx                                => release_on: status "off,5xx" is neither a code
release_on off 5xx                                => release_on: off stands alone, not with 5xx

# Pointers that would name nothing.
key json id                                       => key: JSON pointer "id" must start with a slash
key json /data[0]/id                              => key: JSON pointer "/data[0]/id" has a bracket; write the number of an element between slashes, as in /data/0/id
key json /id,/other                               => has a comma in front of a slash or at its end, as between two pointers
key json /id,                                     => has a comma in front of a slash or at its end
key json /id /other                               => key: prefix: "/other" looks like a JSON pointer
key json /data/id/                                => ends with a slash
key json "/order id"                              => has a space; write each pointer by itself
key json /items/*/id                              => key: JSON pointer "/items/*/id" has a *, which stands for several members only in exclude
key json /{env.MEMBER}                            => key: JSON pointer "/{env.MEMBER}" has the placeholder {env.MEMBER}, and none is replaced there
key json /a~1b/{id}                               => ok
key parts p {\njson /a\njson /b,/c optional\n}    => 4: key parts: JSON pointer "/b,/c" has a comma in front of a slash
key value {http.dedup.json./a[0]}                 => as in /a/0
key value {http.dedup.json./a~2}                  => {http.dedup.json./a~2}: JSON pointer "/a~2" must be UTF-8, and write ~
scope {http.dedup.json.tenant}                    => scope: {http.dedup.json.tenant}: JSON pointer "tenant" must start with a slash
scope {http.dedup.json./{http.request.header.X}}  => has the placeholder {http.request.header.X}, and none is replaced there
scope {http.dedup.json./tenants/*}                => JSON pointer "/tenants/*" has a *
caller {http.dedup.json./a[0]/id}                 => as in /a/0/id
retention_from json /a[1]                         => retention_from: JSON pointer "/a[1]" has a bracket
retention_from json /windows/*                    => retention_from: JSON pointer "/windows/*" has a *
release_if /errors[0]                             => release_if: JSON pointer "/errors[0]" has a bracket
release_if /items/*/error                         => release_if: JSON pointer "/items/*/error" has a *
key content\nexclude /sent_at,/attempt            => 3: exclude: JSON pointer "/sent_at,/attempt" has a comma
key content\nexclude /items[*]/at                 => 3: exclude: JSON pointer "/items[*]/at" has a bracket; write the number of an element between slashes, as in /items/*/at
key content\nexclude /items/-/at                  => 3: exclude: JSON pointer "/items/-/at" has the token -
key content\nexclude /sent*                       => 3: exclude: JSON pointer "/sent*" has a * inside the name "sent*"
key content\nexclude /data.sent_at /a,b           => ok
exclude ?                                         => exclude: "?" names no parameter of the query
exclude ?ts,sig                                   => exclude: "?ts,sig" names no parameter of the query; write each by its name alone, such as ?ts ?sig, or ?* for all
exclude ?filter[name] ?a/ "?a b"                  => ok

# What has nothing to leave out, or to keep.
key form token\nexclude /csrf                     => 3: exclude: /csrf is a member of JSON, and the body with the key is a form; write fingerprint none
key content\nexclude ?ts                          => 3: exclude: ?ts is left out of the query in a fingerprint, and there is none
key header X-Id\nexclude ?ts /at                  => 3: exclude: /at is left out of a content key or of a json fingerprint, and there is neither
key content\nfingerprint json                     => 3: fingerprint json and a key made of content exclude each other

# Keys. Several words take a field or a pointer: the error names the word.
key cookie a                                      => key "cookie" is not accepted; use header <field>
key header X_Id(1)                                => key: header "X_Id(1)" is not a field name
key header Host                                   => key: header Host never arrives as a field
key header Dedup-Attempt                          => key: header Dedup-Attempt never arrives as a field
key header Cookie                                 => key: Cookie carries a credential, and keys are stored readable
key header proxy-authorization                    => key: Proxy-Authorization carries a credential
key header Stripe-Account                         => ok
key header X-Id optional                          => key header: optional is a word of the lines in key parts
key header X-Id orders redis://:s3cret@h          => key header has the wrong number of arguments
key parts a b {\ncontent\n}                       => key parts takes one argument, a prefix; it has ["a" "b"]
key header X-Id {http.request.header.X-Tenant}    => key: prefix: "{http.request.header.X-Tenant}" has the placeholder {http.request.header.X-Tenant}, and none is replaced there
key header X-Id a}b{                              => ok
key form /token                                   => key: form "/token" is not the name of a field; write the name alone, such as token
key value nightly                                 => key: value: "nightly" has no placeholder
key value {http.request.uri.query.a               => key: value: "{http.request.uri.query.a" has a placeholder without its closing brace
key value {http.request.cookie.a}                 => key: value {http.request.cookie.a}: a cookie may be a credential
key value {http.request.header.Authorization}     => carries a credential, and keys are stored readable
key parts p {\nheader A optional\n}               => key: the first part is optional
key parts p {\nheader Cookie\n}                   => 3: key parts: Cookie carries a credential
key parts p {\nheader A x\n}                      => 3: key parts: header has "x" behind it; a part has no prefix, and only the word optional may follow

# One key for all requests answers all with one response, and a key that no retry repeats protects nothing.
key value "{env.TEST_A}-{file./run/id}"           => is the same in all requests, which would share one key; use a placeholder that differs, such as {http.request.
key parts a {\nvalue {env.TEST_ID}\nvalue {file./run/id}\n} => is the same in all requests
key parts a {\nvalue {env.TEST_REGION}\nheader X-A\n} => ok
key value {env.TEST_A}-{http.request.uri.query.id} => ok
key value {http.request.uuid}                     => changes with every request, so a retry would never match; use a value that a retry repeats, such as {http.request.
key value {http.request.host}-{time.now.unix_ms}  => changes with every request
key parts a {\nheader X-A\nvalue {time.now.http}\n} => 4: key parts: value: {time.now.http} changes with every request
key value {time.now.year}-{http.request.uri.query.id} => ok
scope a-{http.request.remote.port}                => changes with every request
scope {time.now.year}                             => ok
scope {http.request.remote.host}                  => ok
caller {http.request.uuid}                        => changes with every request

# A word of scope that looks like a setting would be a constant: callers would share keys.
scope ""                                          => scope: "" separates no callers
scope method host path                            => scope: "method" is the same text in every request; write {http.request.method}
scope {http.request.host} HOST                    => "HOST" is the same text in every request; write {http.request.host}
scope {http.request.host} path                    => write {http.request.orig_uri.path}
scope query                                       => write {http.request.orig_uri.query}
scope user                                        => write {http.auth.user.id}
scope caller                                      => leave scope out for the default, which has the caller
scope default                                     => leave scope out for the default
scope off                                         => write scope shared if all requests share their keys
scope none                                        => write scope shared if all requests share their keys
scope {http.request.host} any                     => write scope shared if all requests share their keys
scope all                                         => write scope shared if all requests share their keys
scope Authorization                               => write {http.request.header.Authorization}
scope x-tenant-id                                 => write {http.request.header.X-Tenant-Id}
scope runs jobs                                   => no word of it has a placeholder, so all requests would share their keys; write scope shared runs if that is meant
scope {http.request.host} shared                  => shared stands first, with at most a name behind it, as in scope shared runs
scope shared a b                                  => shared stands first, with at most a name behind it
scope shared {http.request.host}                  => "{http.request.host}" is not a name: with shared, no placeholder is replaced
scope shared runs                                 => ok
scope {http.request.host} runs                    => ok
scope {env.REGION}                                => ok
scope {http.request.header.host}                  => {http.request.header.host} is always empty; write {http.request.host}
scope {http.request.header.Dedup-Execution-Id}    => is always empty: fields that start with Dedup- are removed
scope {http.request.body.x}                       => would read the body without a limit; write {http.dedup.json./tenant}
scope json /namespace                             => scope: "json" is a word behind key; scope takes texts with placeholders, such as
scope {http.request.host} parts                   => scope: "parts" is a word behind key
scope {http.request.host} /a~1b                   => scope: "/a~1b" is not looked up in the body; for a member write {http.dedup.json./a~1b}
caller                                            => caller lacks its arguments
caller session                                    => caller: "session" is not one placeholder; write one such as {http.request.cookie.session} or {http.request.header.X-User}
caller "{http.request.cookie.a} {http.request.cookie.b}" => is not one placeholder
caller {http.request.header.authorization}        => tells callers apart by default; leave it out
caller {http.auth.user.id}                        => tells callers apart by default; leave it out
caller {env.X}                                    => {env.X} is the same in every request
caller {http.request.cookie.a} {http.request.cookie.a} => is named twice
caller {http.request.cookie.a}\nscope {http.request.host} => 3: caller and scope exclude each other: scope replaces the default, to which caller adds; add {http.request.cookie.a} to scope
mode webhook\ncaller {http.request.cookie.a}      => 3: caller: mode webhook has no caller
mode mcp\nkey json /params/arguments/id\ncaller {http.request.cookie.session} => ok

# force removes its field from requests.
force Content-Type                                => force: Content-Type has a meaning of its own
force x-api-key                                   => force: x-api-key has a meaning of its own
force Remote-User                                 => force: Remote-User has a meaning of its own
force Stripe-Account                              => force: Stripe-Account has a meaning of its own
force Dedup-Force                                 => force: fields that start with Dedup- are removed
force x-id\nkey parts p {\nheader X-Id\n}         => force: x-id is where the key comes from
force x-window\nretention_from header X-Window    => force: x-window is where the retention comes from
force X-Tenant\nscope a "b {http.request.header.x-tenant}" => force: X-Tenant is a part of the scope
force X-Run\ncaller {http.request.header.X-Run}   => force: X-Run is a part of the scope
force X-Force\nscope {http.request.header.X-Forced} => ok

# Numbers. A duration that is too long is not reported as malformed: its author would look for a typing mistake.
retention 36501d                                  => retention: 876024h0m0s is too long; use at most 36500d
retention 106752d                                 => retention: 106752d is too long; use at most 36500d
retention_from header X 1000000d                  => retention_from: max: 1000000d is too long
retention_from header X-Window 0                  => retention_from: max: 0s is too short; use at least 1s
retention 1..5d                                   => retention: "1..5d" is not a duration; use one such as 500ms, 30s, 5m or 7d
timeout 5                                         => timeout: "5" is not a duration
retention 0                                       => retention: 0s is too short; use at least 1s
lease 0                                           => lease: 0s is too short; use at least 300ms
timeout 0                                         => timeout: 0s is too short; use at least 1ms
store redis {\ntimeout 0\n}                       => 3: store redis: timeout: 0s is too short; use at least 10ms
wait 0                                            => wait: "0" is not accepted; use a duration from 1ms to 36500d, such as 30s, or off
wait 1d9999999h                                   => wait: "1d9999999h" is not accepted
retention_from header dedup-retention             => retention_from: header dedup-retention never arrives
retention_from header authorization               => retention_from: header authorization carries a credential
# humanize reads 1,5MiB as 15 MiB, and 1.5 without a unit as 1 byte.
max_request_body 1,5MiB                           => max_request_body: "1,5MiB" is not a size; use one above 0 such as 64KiB or 1.5MiB, and at most 1PiB
max_request_body 1.5                              => max_request_body: "1.5" is not a size
max_request_body "1.5 b"                          => max_request_body: "1.5 b" is not a size
max_response_body 0                               => max_response_body: "0" is not a size
max_response_body 1.5.5MiB                        => max_response_body: "1.5.5MiB" is not a size
max_response_body -1                              => max_response_body: "-1" is not a size
max_response_body 2PiB                            => max_response_body: "2PiB" is not a size
max_request_body ".5MiB"                          => ok
max_request_body 1PiB                             => ok

# A page on no host cannot be opened. "Not absolute" would mislead where something is to be encoded.
docs https://                                     => docs: "https://" is not an absolute URL, such as https://
docs https:docs                                   => docs: "https:docs" is not an absolute URL
docs HTTPS://:443/docs                            => docs: "HTTPS://:443/docs" is not an absolute URL
docs docs                                         => docs: "docs" is not an absolute URL
docs https://a/<b>                                => docs: "https://a/<b>" has '<', which must be percent-encoded in a URL
docs https://a/{env.PAGE}                         => docs: "https://a/{env.PAGE}" has '{', which must be percent-encoded
docs http://[::1]:80/docs#keys                    => ok
docs urn:example:idempotency                      => ok

# Words of other blocks, of Caddy, and of nothing.
namespace a                                       => dedup: unknown word "namespace"; it belongs in the global option dedup
buffered 1MiB                                     => it belongs in limits of the global option dedup
password s3cret                                   => it belongs in store redis
header Idempotency-Key                            => it belongs in verify hmac or behind key, as key header
parts orders {\ncontent\n}                        => it belongs behind key, as key parts
in_flight reject                                  => dedup: unknown word "in_flight"; it belongs in limits of the global option dedup
retentoin 1d                                      => dedup: unknown word "retentoin"; did you mean retention?
key header X-Id\nreverse_proxy localhost:3000     => 3: dedup: unknown word "reverse_proxy"; it is a directive of Caddy; is a } missing in front of it?
github /webhooks/*                                => as in dedup /webhooks/* github
/webhooks/*                                       => as in dedup /webhooks/* github
ttl 1h                                            => dedup: unknown word "ttl"; write retention 7d in the block of a site's dedup
expire 1h                                         => dedup: unknown word "expire"; write retention 7d in the block of a site's dedup
status 409                                        => dedup: unknown word "status"; write release_on 409 for
provider github                                   => dedup: unknown word "provider"; write the provider's name behind dedup, as in dedup github
redis localhost:6379                              => dedup: unknown word "redis"; write store redis {env.REDIS_URL}, or store redis and a URL such as redis://host:6379
store redis {\nca ca.pem\n}                       => 3: store redis: unknown word "ca"; it belongs in tls of store redis
store localhost:6379                              => did you mean store redis redis://localhost:6379? use file, memory or redis
store redis localhost:6379                        => has no scheme, such as that of redis://localhost:6379
on_missing maybe                                  => on_missing: "maybe" is not accepted; use pass or reject

# What says something else about a tool call.
mode mcp                                          => mode mcp: a tool call has no key by default
mode mcp\nkey form token                          => 3: mode mcp: a tool call is JSON and has no form
mode mcp\nkey parts a {\nheader X\nform b\n}      => 3: mode mcp: a tool call is JSON and has no form
mode mcp\n{key}\nmethods POST                     => 4: mode mcp and methods exclude each other
mode mcp\n{key}\nrelease_on 5xx                   => 4: mode mcp and release_on exclude each other
mode mcp\n{key}\nrelease_if /e                    => 4: mode mcp and release_if exclude each other
mode mcp\n{key}\nfingerprint json                 => 4: mode mcp and fingerprint exclude each other
mode mcp\n{key}\nforce X-Force                    => 4: mode mcp and force exclude each other
mode mcp\n{key}\non_duplicate acknowledge         => 4: mode mcp and on_duplicate exclude each other
mode mcp\n{key}\non_duplicate see_other           => 4: mode mcp and on_duplicate exclude each other
mode mcp\n{key}\nverify github {env.SECRET}       => 4: mode mcp and verify exclude each other
mode mcp\n{key}\nkeep_header Mcp-Session-Id       => 4: keep_header: Mcp-Session-Id
mode mcp\n{key}\nkeep_header access-control-allow-origin => 4: mode mcp: access-control-allow-origin is of the first client's stream or origin
mode mcp\nkey content                             => 3: mode mcp: key content needs a retention
mode mcp\nkey parts a {\nheader X\ncontent\n}     => 3: mode mcp: key content needs a retention
mode mcp\n{key}\ntools                            => 4: tools
mode mcp\n{key}\ntools pay pay                    => 4: tools: pay is named twice
mode mcp\nkey json /params                        => 3: mode mcp: a key is a text
mode mcp\nkey value a-{http.dedup.json./params/arguments} => 3: mode mcp: a key is a text
mode mcp\nkey json /id                            => 3: mode mcp: the id differs in a repeat
mode mcp\nkey value {http.dedup.json./id}         => 3: mode mcp: the id differs in a repeat
mode mcp\nkey parts a {\njson /a\njson /id\n}     => 3: mode mcp: the id differs in a repeat
tools pay                                         => tools: only mode mcp has calls of tools
mode mcp\n{key}\nexclude /params/arguments/token ?ts\non_duplicate conflict\nscope {http.auth.user.id}\ntools pay => ok
mode mcp\nkey header Idempotency-Key              => ok
mode mcp\nkey content\nretention 1m               => ok

# Words of store redis that exclude each other: the line is that of the second.
store redis redis://u@a {\nusername b\n}          => 3: store redis: the URL and username both set the user's name
store redis rediss://a {\ntls {\n}\n}             => 3: store redis: the URL starts with rediss://, and tls without settings means the same
store redis {\naddress a:1\ncluster\ndb 1\nprefix a:\n} => 5: store redis: 
store redis {\ndb 1\naddress a:1\ncluster\nprefix a:\n} => 5: store redis: 
store redis redis://a {\nprefix a:\naddress b:1\ntimeout 1s\n} => 4: store redis: 
store redis {env.TEST_URL} {\nsentinel m\ncluster\ntimeout 1s\n} => 4: store redis: 
store redis redis://:p@a {\npassword {env.P}\ntimeout 1s\n} => 3: store redis: 
store redis redis://a/1 {\ndb 0\ntimeout 1s\n}    => 3: store redis: 
store redis {\nprefix a:\ntls {\ncert {env.TEST_CERT}\n}\n} => 4: store redis: tls: cert and key need each other, and key is missing
store redis redis://a {\nprefix a:\ntls {\nca ca.pem\nkey key.pem\n}\n} => 4: store redis: tls: cert and key need each other, and cert is missing
store redis redis://u@h redis://u@i {\ntimeout 1s\npassword p\n} => ok
store redis {\naddress a:1\nsentinel_username u\nsentinel m\nsentinel_password p\n} => ok

# The values of placeholders are not known when a Caddyfile is read. One that is not closed would be literal text.
store redis {env.TEST_URL} {\nusername a\n}       => ok
store redis redis://:{env.P}@h redis://:{env.P}@i => ok
store redis {\nsentinel {env.M}\naddress a:1 {env.A}\nusername {env.U}\npassword {env.P}\ntls {\nca {env.C}\n}\n} => ok
store file {env.TEST_DIRECTORY}/keys              => ok
store file {env.TEST_TENANT                       => store file: a placeholder in it lacks its closing brace

# Errors do not show a misplaced Redis URL, or a part of one, whichever check has found it.
store redis://:s3cret@h                           => did you mean store redis <url>?
store redis://:s3cret                             => did you mean store redis <url>?
store https://u:s3cret@h                          => 
store u:s3cret@h                                  => did you mean store redis <url>?
store file redis://:s3cret@h a                    => store file takes one path at most
store memory redis://:s3cret@h                    => store memory takes no arguments
store memory {\nredis://:s3cret@h\n}              => 3: store memory takes no block
store redis redis://:s3cret@h s3cret              => URL 2: the redis URL has no scheme
store redis {\nredis://:s3cret@h\n}               => 3: store redis: unknown word
store redis {\naddress redis://:s3cret@h\n}       => 3: store redis: address: a redis address (not shown, it may hold a password) is a URL or has a user in it; use host:port or the absolute path of a unix socket; write a URL behind store redis
store redis {\naddress a:1 :s3cret@h:6379\n}      => 3: store redis: address: a redis address (not shown
store redis {\npassword u s3cret\n}               => 3: password takes one argument
store redis {\npassword u {\ns3cret\n}\n}         => 4: password takes no block behind its arguments
store redis {\ncluster redis://:s3cret@h\n}       => 3: cluster takes no argument
store redis {\ntls redis://:s3cret@h\n}           => 3: tls takes a block
store redis {\ntls {\nredis://:s3cret@h\n}\n}     => 4: tls: unknown word
store redis {\ndb redis://:s3cret@h\n}            => 3: db: "<not shown
max_request_body redis://:s3cret@h                => max_request_body: "<not shown
on_missing redis://:s3cret@h                      => use pass or reject
redis://:s3cret@h                                 => dedup: unknown word
key redis://:s3cret@h                             => key "<not shown
key header redis://:s3cret@h                      => is not a field name
key content redis://:s3cret@h{http.vars.a}        => none is replaced there
key parts a {\nheader X-Id redis://:s3cret@h\n}   => 3: key parts: header has "<not shown
scope redis://:s3cret@h redis://:s3cret@h         => no word of it has a placeholder
docs "redis://:s3cret@h a"                        => is not an absolute URL
docs "redis://:s3cret\"@h a"                      => is not an absolute URL
docs https://s3cret@example.com                   => docs: the URL has a user, and refused clients get the URL

## directives

dedup githb                                       => 1: "githb" is not a provider; did you mean github?
dedup payments                                    => 1: "payments" is not a provider
dedup redis://:s3cret@h                           => 1: 
dedup github github                               => 1: the provider "github" is named twice
dedup svix resend                                 => 1: the requests of svix and resend look the same
dedup openai replicate                            => 1: the requests of openai and replicate look the same
dedup github @hooks                               => 1: the matcher @hooks comes before the providers, as in dedup @hooks github
dedup github observe                              => 1: observe is a word of the block: dedup { observe ... }
dedup github {\nforce X-Force\n}                  => force: beside a provider
dedup github {\ncaller {http.request.cookie.a}\n} => caller: mode webhook has no caller
# Only the user can decide what to leave out of the key.
dedup github {\nretention 1d\nkey header X-Id\n}  => 3: mode: providers beside keys need it written; webhook leaves the caller and the fingerprint out of a key
dedup github {\nmode api\nkey header X-Id\n}      => ok
dedup github {\nmode mcp\n{key}\n}                => mode mcp and providers exclude each other

# A literal may be a secret: {$NAME} is one by now. Neither it nor a word beside it is shown.
dedup github {\nverify\n}                         => verify lacks its arguments
dedup github {\nverify s3cret\n}                  => argument 1 of verify is neither a provider nor one placeholder
dedup github {\nverify github s3cret\n}           => verify: secret 1 is not one placeholder {env.NAME} or {file./path}
dedup github {\nverify github {env.A} s3cret\n}   => verify: secret 2 is not one placeholder
dedup github {\nverify {env.A}s3cret\n}           => argument 1 of verify is neither
dedup github {\nverify github {env.A} {env.A}\n}  => verify: secret {env.A} is named twice
dedup github {\nverify github {\ns3cret\n}\n}     => 3: verify: unknown word behind verify, which is not shown
dedup github {\nverify github {\nsecret s3cret\n}\n} => verify: secret 1 is not one placeholder
dedup github {\nverify github {env.A} {\ns3cret\n}\n} => verify takes no block behind its arguments
dedup github {\nverify github {env.A}\ns3cret\n}  => 3: dedup: unknown word behind verify
dedup github {\nverify github {\nsecret {env.A} {\ns3cret\n}\n}\n} => secret takes no block behind its arguments
dedup github {\nverify github {\n}\n}             => verify: github needs a secret
dedup github {\nverify github {\nsecret {env.A}\nwithin 0\n}\n} => 4: within: argument 1 is not accepted; use a duration such as 5m, or off
dedup sns {\nverify sns {env.A}\n}                => verify: requests of sns cannot be verified: its certificate
dedup github stripe {\nverify {env.A}\n}          => verify names no provider, and the handler has 2
dedup github stripe {\nverify github {env.A}\n}   => verify: nothing verifies the requests of stripe
dedup github {\nverify github {env.A}\nverify stripe {env.A}\n} => 3: verify stripe: the handler does not serve stripe; add stripe behind dedup
dedup github {\nverify github {env.A}\nverify github {env.B}\n} => 3: verify github is repeated
dedup github {\nmode webhook\nkey content\nverify github {env.A}\n} => 4: verify: nothing verifies the requests of the key lines, by which anybody could get past; add verify hmac
dedup github {\nverify github {env.A}\nverify hmac {\nheader X-S\nsecret {env.A}\n}\n} => 3: verify hmac is for the key lines
dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\n}\nverify hmac {\nheader X-S\nsecret {env.A}\n}\n} => 6: verify hmac is repeated
dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\n}\nforce X-Force\n} => 6: force: beside verify
dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\n}\nmethods POST\n} => 6: methods: beside verify
dedup {\nverify hmac {env.A}\n}                   => verify hmac takes a block
dedup {\nverify hmac {\nsecret {env.A}\n}\n}      => verify: header is missing; write the field that has the signature
dedup {\nverify hmac {\nheader X-S s3cret\n}\n}   => 3: header takes one argument, the name of a header field; it has 2: [argument 1 argument 2]
dedup {\nverify hmac {\nheader "s3cret s3cret"\nsecret {env.A}\n}\n} => verify: header argument 1 is not
dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\nalgorithm s3cret\n}\n} => 5: verify: algorithm: argument 1 is not accepted; use sha256, sha1 or sha512
dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\ntimestamp a b\n}\n} => 5: timestamp takes the name of a header field, s, ms or rfc3339

dedup_dashboard body                              => 1: dedup_dashboard: unknown word "body"; it takes bodies and title <text>, or nothing
dedup_dashboard title                             => 1: dedup_dashboard: title takes a text
dedup_dashboard title ""                          => 1: dedup_dashboard: title takes a text
dedup_dashboard title a title b                   => 1: dedup_dashboard: title is repeated
dedup_dashboard bodies bodies                     => 1: dedup_dashboard: bodies is repeated
dedup_dashboard {\nbodies\n}                      => dedup_dashboard takes no block
dedup_dashboard title "a text" bodies             => ok

## lines of the global option

retention 7d                                      => the global option dedup: unknown word "retention"; it belongs in the block of a site's dedup
key header X-Id                                   => it belongs in the block of a site's dedup or in tls of store redis
in_flight 1000                                    => it belongs in limits of the global option dedup
storage redis                                     => the global option dedup: unknown word "storage"; write store redis {env.REDIS_URL}, store file or store memory
zzz 1                                             => the global option dedup: unknown word "zzz"; use encrypt, limits, local_copies, namespace or store
limits {\nretention 5d\n}                         => 3: limits: unknown word "retention"; it belongs in the block of a site's dedup
limits {\nbuffered 1024,\n}                       => 3: buffered: "1024," is not a size
limits redis://:s3cret@h {\n}                     => limits takes a block and no arguments
redis://:s3cret@h                                 => the global option dedup: unknown word
local_copies redis://:s3cret@h                    => local_copies: "<not shown
local_copies 0x10                                 => local_copies: "0x10" is neither a size nor off
encrypt                                           => encrypt lacks its arguments
namespace ""                                      => namespace: the name is empty
namespace "a {env.TEST_A} {env.TEST_B"            => namespace: a placeholder in it lacks its closing brace
store file /srv/{env.TEST_TENANT/keys             => store file: a placeholder in it lacks its closing brace

## JSON of dedup

{"mode": "mcp", "tools": [""]}                    => tools: the name of a tool is empty
# What the parser of a Caddyfile finds, the check of JSON finds.
{"keys": [{}]}                                    => keys[0]: a key source has 0 of header, json, form, value, content and parts; it takes exactly one
{"keys": [{"header": "X-Id", "json": "/id"}]}     => keys[0]: a key source has 2 of
{"keys": [{"header": "X-Id"}, {"json": "id"}]}    => keys[1]: JSON pointer "id" must start with a slash
{"keys": [{"prefix": "p", "parts": [{}]}]}        => keys[0]: a key source has 0 of
{"providers": ["gitub"]}                          => "gitub" is not a provider; did you mean github?
{"providers": ["redis://:s3cret@h"]}              => is not a provider
{"providers": ["github"], "keys": [{"header": "X-Id"}]} => mode: providers beside keys need it written
{"on_duplicate": "reject"}                        => on_duplicate: "reject" is not accepted; use replay, conflict, acknowledge or see_other
{"force": "Idempotency-Key"}                      => force: Idempotency-Key is where the key comes from
{"retention_from": {}}                            => retention_from: it takes exactly one of header and json
{"retention_from": {"json": "/window", "max": -1}} => retention_from: max: -1ns is too short
{"max_attempts": -1}                              => max_attempts: -1 is not accepted; use a whole number from 0 to 2147483647
{"max_response_body": 4611686018427387904}        => max_response_body: 4611686018427387904 is not accepted; use a number of bytes from 1 to
{"lease": 4611686018427387904}                    => lease: 1281023h53m38.427387904s is too long
{"wait": -1}                                      => wait: -1ns is too short
{"verify": [{"secrets": ["{env.A}"]}]}            => verify[0]: it takes exactly one of provider and hmac
{"providers": ["github"], "verify": [{"provider": "github", "hmac": {}, "secrets": ["{env.A}"]}]} => verify[0]: it takes exactly one
{"providers": ["github"], "verify": [{"provider": "github", "secrets": ["s3cret"]}]} => verify[0]: secret 1 is not one placeholder
{"providers": ["stripe"], "verify": [{"provider": "stripe", "secrets": ["{env.A}"], "within": "-1s"}]} => verify[0]: within: -1s is too short
{"verify": [{"hmac": {"header": "X-S", "encoding": "base32"}, "secrets": ["{env.A}"]}]} => verify[0]: encoding: "base32" is not accepted
{"verify": [{"hmac": {"header": "X-S", "timestamp_unit": "h"}, "secrets": ["{env.A}"]}]} => verify[0]: the unit of timestamp "h" is unknown; it must be s, ms, rfc3339

# Errors about types name the fields of JSON, and none of Go.
{"keys": "X-Id"}                                  => keys: a text is not accepted; use a list of objects
{"keys": [{"prefix": "p", "parts": [{"header": "A"}, {"json": 5}]}]} => keys[0].parts[1].json: a number is not accepted; use a text
{"providers": "github"}                           => providers: a text is not accepted; use a list of texts
{"observe": "true"}                               => observe: a text is not accepted; use true or false
{"max_attempts": 1.5}                             => max_attempts: 1.5 is not accepted; use a whole number
{"max_request_body": "8MiB"}                      => max_request_body: a text is not accepted; use a whole number
{"retention": true}                               => retention: true is not accepted; use a duration such as "30s" or "7d"
{"retention": "1 week"}                           => retention: "1 week" is not a duration; use one such as "30s" or "7d"
{"retention": "redis://:s3cret@h"}                => retention: "<not shown
{"retention": "999999d"}                          => retention: "999999d" is too long; use at most "36500d"
{"retention": 86400.5}                            => retention: 86400.5 is not accepted
{"verify": [{"hmac": {"header": "X-S"}, "secrets": "s3cret"}]} => verify[0].secrets: a text is not accepted; use a list of texts
{"verify": [{"hmac": {"header": ["X-S"]}}]}       => verify[0].hmac.header: a list is not accepted; use a text
{"retention_from": {"header": {}}}                => retention_from.header: an object is not accepted; use a text
{"retentoin": "7d"}                               => unknown field "retentoin"; did you mean retention?
{"keys": [{"heeder": "X-Id"}]}                    => keys[0]: unknown field "heeder"; did you mean header?
{"zzz": 1}                                        => unknown field "zzz"; use caller, docs, exclude,
{"redis://:s3cret@h": 1}                          => unknown field
{"Settings": {}}                                  => unknown field "Settings"
# A number is nanoseconds. One that is too short for any setting was meant as seconds.
{"lease": 90}                                     => lease: 90 is 90ns, because a number is nanoseconds; write "1m30s" for 90 seconds
{"verify": [{"within": 300}]}                     => verify[0].within: 300 is 300ns, because a number is nanoseconds; write "5m" for
{"wait": 0, "timeout": 1000000}                   => ok
# What encoding/json accepts. An empty list is the default.
{"retention": null, "wait": null, "keys": null, "verify": [], "retention_from": null, "Lease": "45s"} => ok

## JSON of the rest, behind its name

app []                                            => a list is not accepted; use an object
app {"encrypt": "s3cret"}                         => encrypt: a text is not accepted; use a list of texts
app {"limits": {"waiter": 5}}                     => limits: unknown field "waiter"; did you mean waiters or
app {"limits": {"client_idle": 10}}               => limits.client_idle: 10 is 10ns
app {"namespace": "{env.TEST_NOT_SET}"}           => namespace: {env.TEST_NOT_SET}: {env.TEST_NOT_SET} is empty
app {"namespace": "shop-{env.TEST_EMPTY}"}        => namespace: shop-{env.TEST_EMPTY}
app {"namespace": "{env.TEST_SECRET"}             => namespace: a placeholder in it lacks its closing brace
app {"encrypt": ["{env.TEST_NOT_SET}"]}           => encrypt: {env.TEST_NOT_SET} is empty
app {"encrypt": ["{env.TEST_BLANK}"]}             => encrypt: {env.TEST_BLANK} is empty
app {"encrypt": ["{file./nonexistent/key}"]}      => encrypt: {file./nonexistent/key} is empty
app {"encrypt": ["{env.TEST_KEY}", "{env.TEST_SHORT}"]} => encrypt: {env.TEST_SHORT} has 6 bytes in base64; a key is 32 random bytes in base64, such as
app {"encrypt": ["{env.TEST_SECRET}"]}            => encrypt: {env.TEST_SECRET} has 13 characters that are not base64
app {"encrypt": ["{env.TEST_KEY}", "{env.TEST_SAME}"]} => encrypt: keys 1 and 2 are the same
app {"encrypt": ["{env.TEST_KEY}", "{env.TEST_KEY}"]} => encrypt: arguments 1 and 2 are the same key
app {"encrypt": ["{env.TEST_KEY}", "s3cret"]}     => encrypt: argument 2 is not one placeholder {env.NAME} or {file./path}
app {"encrypt": ["s3cret{env.TEST_KEY}"]}         => encrypt: argument 1 is not one placeholder
app {"encrypt": ["{http.request.host}"]}          => encrypt: argument 1 is not one placeholder
app {"encrypt": [""]}                             => encrypt: argument 1 is not one placeholder
# A store without its kind is not shown: the settings may be those of Redis, with its password.
app {"store": {"addresses": ["h:1"], "password": "s3cret"}} => store: its member "store" is missing or is not a text; use file, memory or redis
app {"store": {"store": 1, "password": "s3cret"}} => store: its member "store" is missing or is not a text
app {"store": {"Store": "redis", "password": "s3cret"}} => use file, memory or redis
app {"store": {"store": ""}}                      => use file, memory or redis
app {"store": {"store": "redis://:s3cret@h"}}     => store: a URL is not accepted here, and is not shown; for redis, write it in url
memory {"path": "a"}                              => unknown field "path"
file {"path": ["a"]}                              => path: a list is not accepted; use a text
file {"paths": "a"}                               => unknown field "paths"; did you mean path?
file {"path": "/srv/{env.TEST_EMPTY}/keys"}       => path /srv/{env.TEST_EMPTY}/keys: {env.TEST_EMPTY} is empty
file {"path": "/srv/{tenant}/keys"}               => path /srv/{tenant}/keys: it has a placeholder that is unknown
file {"path": "/srv/{env.TEST_TENANT/keys"}       => a placeholder in it lacks its closing brace
dashboard {"title": 5}                            => title: a number is not accepted; use a text
dashboard {"body": true}                          => unknown field "body"
health {"probe": true}                            => probe: true is not accepted; use a text
health {"probe": "alive"}                          => unknown probe "alive"; use ready or live
health {"prob": "live"}                           => unknown field "prob"; did you mean probe?
redis {"password": 12345}                         => password: a number is not accepted; use a text
redis {"tls": {"cas": "a"}}                       => tls: unknown field "cas"
redis {"timeout": 2}                              => timeout: 2 is 2ns, because a number is nanoseconds; write "2s" for
redis {}                                          => no server is set
redis {"url": "redis://a", "addresses": ["b:1"]}  => exclude each other
redis {"url": "redis://a", "urls": ["redis://b"]} => url and urls exclude each other; use one of them
redis {"addresses": ["a:1"], "wait_replicas": -1} => wait_replicas: -1 is not accepted
redis {"url": "{env.TEST_URL}", "db": 3}          => names a database, and db does too
redis {"addresses": ["a:1"], "username": "s3cret"} => username without a password
redis {"addresses": ["a:1", "{env.TEST_ADDRESS}"]} => redis address "a:1" is named twice
redis {"addresses": ["b:1", "{env.TEST_ADDRESS}"]} => ok
redis {"prefix": "a{b}", "url": "redis://a"}      => prefix a{b}: it has a placeholder that is unknown
redis {"prefix": "a{b", "url": "redis://a"}       => redis prefix "a{b" has a '{' in it
redis {"prefix": "a{env.TEST_NOT_SET}:"}          => prefix a{env.TEST_NOT_SET}:: {env.TEST_NOT_SET} is empty
# A placeholder that is empty would name another server, or one without its password.
redis {"url": "redis://:s3cret@{env.TEST_NOT_SET}"} => url: {env.TEST_NOT_SET} is empty
redis {"urls": ["redis://a", "redis://{env.TEST_EMPTY}"]} => urls: {env.TEST_EMPTY} is empty
redis {"addresses": ["redis{env.TEST_NOT_SET}:6379"]} => addresses: {env.TEST_NOT_SET} is empty
redis {"password": "{file./no/such/password}"}    => password: {file./no/such/password} is empty
redis {"password": "s3{s3cret}cret"}              => password: it has a placeholder that is unknown
redis {"sentinel": "a{env.TEST_NOT_SET}"}         => sentinel: {env.TEST_NOT_SET} is empty
redis {"sentinel": "a", "sentinel_username": "{env.TEST_NOT_SET}"} => sentinel_username: {env.TEST_NOT_SET} is empty
redis {"url": "redis://a", "tls": {"ca": "{env.TEST_NOT_SET}/ca.pem"}} => tls ca: {env.TEST_NOT_SET} is empty
redis {"url": "redis://a", "tls": {"server_name": "{env.TEST_NOT_SET}"}} => tls server_name: {env.TEST_NOT_SET} is empty
redis {"url": "redis://a", "tls": {"ca": "{secret}"}}          => {secret} has no certificate in PEM
redis {"url": "redis://a", "tls": {"ca": "/no/such/ca.pem"}} => /no/such/ca.pem
# Errors show the name of a placeholder, never its value.
redis {"addresses": ["{env.TEST_SECRET_URL}"]}    => redis address "{env.TEST_SECRET_URL}" is a URL
redis {"addresses": ["{env.TEST_HOST}:6379"]}     => redis address "{env.TEST_HOST}:6379" has a host
redis {"url": "http://:{env.TEST_PASSWORD}@h"}    => another scheme
redis {"url": "redis://a", "tls": {"cert": "cert.pem", "key": "{env.TEST_PEM}"}} => tls key takes the name of a file in PEM, not the content of one
redis {"url": "redis://a", "tls": {"cert": "cert.pem", "key": "{env.TEST_BASE64}"}} => tls key takes the name of a file
redis {"url": "redis://a", "tls": {"ca": "-----BEGIN CERTIFICATE-----s3cret"}} => tls ca takes the name of a file

## sites that are adapted

{\ndedup {\n}\ndedup {\n}\n}\n:80               => Testfile:4: the global option dedup is repeated; write all of it in one block
:80 {\ndedup /a,/b\n}                             => @x path /a /b
:80 {\ndedup /a, /b\n}                            => @x path /a /b
:80 {\ndedup "/a /b" github\n}                    => @x path /a /b
:80 {\nroute {\ndedup /a,/b,/c/* {\n}\n}\n}       => Testfile:3: dedup takes one path; for several, write @x path /a /b /c/*
:80 {\ndedup /a, github\n}                       => @x path /a on a line
:80 {\ndedup /a,b\n}                              => ok
:80 {\ndedup "/git hooks"\n}                      => ok
:80 {\n@a path /a\ndedup @a github {\nobserve\n}\n} => ok
{\ndedup redis://:s3cret@h\n}\n:80                => the global option dedup takes a block and no arguments
:80 {\ndedup payments\n}                          => Testfile:2: "payments" is not a provider
# The file of the setting that the error is about.
:80 {\ndedup {\nimport {imported}\nlease 30s\n}\n} => {imported}:3 import chain
:80 {\ndedup {\nkey content\nfingerprint body\nimport {imported}\nlease 30s\n}\n} => Testfile:4: fingerprint body and a key made of content

## sites that are loaded

# What only the load can find names the site and the word.
http://a.test {\ndedup\n}\nhttp://b.test {\n{unset}\n}\nhttp://c.test {\ndedup\n} => site b.test: verify github: secret: {env.TEST_NOT_SET} is empty
http://a.test, http://b.test {\n{unset}\n}        => site a.test, b.test: verify
http://:8080 {\n{unset}\n}                        => site :8080: verify
http://a.test {\nroute /x {\nheader A b\nroute {\n{unset}\n}\n}\n} => site a.test: verify
http://*.test {\n@a host a.test\n@b host b.test\nhandle @a {\ndedup\n}\nhandle @b {\n{unset}\n}\n} => site b.test: verify
http://a.test {\ndedup\n}\nhttp://b.test {\nhandle_errors {\n{unset}\n}\n} => site b.test: verify
&(app) {\n{unset}\n}\nhttp://a.test {\ninvoke app\n} => site :80: verify
http://a.test {\ndedup {\nverify hmac {\nheader X-S\nsecret {env.TEST_NOT_SET}\n}\n}\n} => site a.test: verify hmac: secret: {env.TEST_NOT_SET} is empty
http://a.test {\ndedup {\nlease 1s\nstore redis redis://localhost\n}\n} => site a.test: lease: 1s is too short
http://a.test {\ndedup {\nstore redis {env.TEST_NOT_SET}\n}\n} => site a.test: loading the store: 
{\ndedup {\nnamespace {env.TEST_NOT_SET}\n}\n}\nhttp://a.test {\ndedup\n} => provision dedup: namespace: {env.TEST_NOT_SET}
# Secrets are read when the configuration is loaded.
http://a.test {\ndedup github {\nverify {env.TEST_SECRET} {file.{secret}}\n}\n} => ok
http://a.test {\ndedup github {\nverify {env.TEST_SECRET} {env.TEST_BLANK}\n}\n} => verify github: secret: {env.TEST_BLANK} is empty
http://a.test {\ndedup github {\nverify {file./no/such/secret}\n}\n} => verify github: secret: {file./no/such/secret} is empty
http://a.test {\ndedup chargebee {\nverify {env.TEST_SECRET}\n}\n} => verify chargebee: secret 1 of chargebee has no colon
`

// handlerOf reads a directive with these lines in its block.
func handlerOf(lines string) error {
	_, err := directive("dedup {\n" + lines + "\n}")
	return err
}

func directive(text string) (*Handler, error) {
	h := new(Handler)
	return h, h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
}

// adapted is a Caddyfile in JSON.
func adapted(text string) ([]byte, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Testfile"})
	return config, err
}

// loaded is a Caddyfile that is provisioned, and not started.
func loaded(text string) (caddy.Context, error) {
	config := new(caddy.Config)
	inJSON, err := adapted(text)
	if err == nil {
		err = json.Unmarshal(inJSON, config)
	}
	if err != nil {
		return caddy.Context{}, err
	}
	config.Admin = &caddy.AdminConfig{Disabled: true}
	config.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{WriterRaw: json.RawMessage(`{"output":"` + logOutput + `"}`), Level: logLevel}}}}
	return caddy.ProvisionContext(config)
}

// mistakeIn returns the error of a configuration of the kind of its heading.
func mistakeIn(t *testing.T, kind, text string) (err error) {
	switch kind {
	case "lines of dedup":
		return handlerOf(text)
	case "directives":
		if strings.HasPrefix(text, "dedup_dashboard") {
			return new(Dashboard).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		}
		_, err = directive(text)
	case "lines of the global option":
		_, err = parseGlobalOption(caddyfile.NewTestDispenser("dedup {\n"+text+"\n}"), nil)
	case "JSON of dedup":
		h := new(Handler)
		if err = caddy.StrictUnmarshalJSON([]byte(text), h); err == nil {
			h.setDefaults()
			err = h.check()
		}
	case "JSON of the rest, behind its name":
		name, text, _ := strings.Cut(text, " ")
		module := map[string]caddy.Module{"app": new(App), "memory": new(MemoryStore), "file": new(FileStore), "redis": new(RedisStore), "dashboard": new(Dashboard), "health": new(Health)}[name]
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		defer cancel()
		if err = caddy.StrictUnmarshalJSON([]byte(text), &module); err == nil {
			if module, ok := module.(caddy.Provisioner); ok {
				err = module.Provision(ctx)
			}
		}
	case "sites that are adapted":
		_, err = adapted(text)
	case "sites that are loaded":
		_, err = loaded(text)
	}
	return err
}

// Each mistake is answered with its place, the word, and what is accepted, and no error shows a secret.
func TestMistakes(t *testing.T) {
	files := map[string]string{"imported": "retention 5s\n\nforce Idempotency-Key\n", "secret": "s3cret\r\n"}
	replaced := []string{`\n`, "\n", "{key}", "key json /params/arguments/idempotency_key", "{unset}", "dedup github {\nverify {env.TEST_NOT_SET}\n}"}
	for name, content := range files {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced = append(replaced, "{"+name+"}", path)
	}
	for name, value := range map[string]string{
		"EMPTY": "", "BLANK": "\r\n", "ADDRESS": "a:1", "URL": "redis://h/3", "HOST": "s3cret s3cret", "SECRET_URL": "redis://:s3cret@h:6379",
		"PASSWORD": "s3cret", "BASE64": "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg==s3cret", "PEM": "-----BEGIN PRIVATE KEY-----\ns3cret\n",
		"SECRET": "whsec_s3cret!\n", "KEY": keyText('a'), "SAME": keyText('a'), "SHORT": "c2VjcmV0",
	} {
		t.Setenv("TEST_"+name, value)
	}
	kind, places := "", strings.NewReplacer(replaced...)
	for line := range strings.Lines(mistakes) {
		line = strings.TrimSuffix(line, "\n")
		config, want, found := strings.Cut(line, "=> ")
		if heading, is := strings.CutPrefix(line, "## "); is {
			kind = heading
		}
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		config, want = places.Replace(strings.TrimSpace(config)), places.Replace(want)
		err := mistakeIn(t, kind, config)
		if want == "ok" {
			if err != nil {
				t.Errorf("%s: %v", config, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: accepted", config)
			continue
		}
		place := ""
		if before, after, found := strings.Cut(want, ": "); found && len(before) == 1 {
			place, want = "Testfile:"+before+": ", after
		} else if kind == "lines of dedup" {
			place = "Testfile:2: "
		}
		got := err.Error()
		if !strings.HasPrefix(got, place) || !strings.Contains(got, want) || strings.Contains(got, "s3cret") || strings.Contains(got, keyText('a')) || strings.Contains(got, "key: key:") {
			t.Errorf("%s:\n%s\nwant %s%s", config, got, place, want)
		}
	}
}
