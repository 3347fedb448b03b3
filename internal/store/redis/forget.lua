-- Removes a record with the responses of its runs, whatever it is, but for one
-- whose run is alive.
-- KEYS: 1 record; 2... responses of the runs with the tokens that the caller saw
-- ARGV: 1 those tokens, as 'changed' has returned them, or '' for none;
--       2 '<token>:<revision>' of a record that was returned with 'in flight' and
--         cannot be read, or '': the lease of such a one means nothing
-- Returns {'ok' | 'absent', now}, {'in flight', now, record, token, lease end,
-- revision, expiry}, or {'changed', now, record, token, lease end, revision, expiry,
-- tokens as they are now}.
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kind = redis.call('TYPE', key)
kind = kind.ok or kind
if kind == 'none' then
	return {'absent', now}
end
local waiting = false
if kind == 'hash' then
	local f = redis.call('HMGET', key, 'r', 't', 'l', 'v', 'x', 'p', 'w')
	local owner, revision, earlier = f[2] or '', f[4] or '', f[6]
	if (tonumber(f[3]) or 0) > now and ARGV[2] ~= owner .. ':' .. revision then
		return {'in flight', now, f[1], f[2], f[3], f[4], f[5]}
	end
	local tokens = owner .. (earlier and (' ' .. earlier) or '')
	if tokens ~= ARGV[1] then
		return {'changed', now, f[1], f[2], f[3], f[4], f[5], tokens}
	end
	waiting = f[7]
end
redis.call('DEL', unpack(KEYS))
if waiting then
	for channel in string.gmatch(waiting, '%S+') do
		-- Only a hint, as in settle.lua.
		redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
	end
end
return {'ok', now}
