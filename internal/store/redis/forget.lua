-- Removes a record with the responses of its runs, whatever it is, but for one
-- whose run is alive.
-- KEYS: 1 record; 2... responses of the runs with the tokens that the caller saw
-- ARGV: 1 those tokens, as 'changed' has returned them, or '' for none;
--       2 '1' for a record that cannot be read: its lease then says nothing
-- Returns {'ok' | 'absent' | 'in flight', now} or {'changed', now, tokens as they are now}.
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
	local f = redis.call('HMGET', key, 't', 'p', 'w', 'l')
	if ARGV[2] ~= '1' and (tonumber(f[4]) or 0) > now then
		return {'in flight', now}
	end
	local tokens = (f[1] or '') .. (f[2] and (' ' .. f[2]) or '')
	if tokens ~= ARGV[1] then
		return {'changed', now, tokens}
	end
	waiting = f[3]
end
redis.call('DEL', unpack(KEYS))
if waiting then
	for channel in string.gmatch(waiting, '%S+') do
		-- Only a hint, as in settle.lua.
		redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
	end
end
return {'ok', now}
