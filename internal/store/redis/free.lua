-- Frees a record on an operator's behalf, as the caller has looked it up.
-- KEYS: 1 record
-- ARGV: 1 what is replaced, '<token>:<revision>'; 2 record to write; 3 its token;
--       4 its expiry, ms; 5 time of this server after which nothing is written, ms;
--       6 '1' when the same command was sent before and its reply was lost
-- Returns {'ok' | 'absent' | 'changed' | 'overdue' | 'foreign', now}.
local key, token = KEYS[1], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local f = redis.call('HMGET', key, 't', 'v', 'w', 'p')
local owner, revision, waiting, earlier = f[1], f[2], f[3], f[4] or ''
if not owner or not revision then
	return {redis.call('EXISTS', key) == 0 and 'absent' or 'foreign', now}
end
-- This command was executed before: the record is still as it left it, or it has
-- been claimed since.
if owner == token or (ARGV[6] == '1' and string.find(' ' .. earlier .. ' ', ' ' .. token .. ' ', 1, true)) then
	return {'ok', now}
end
if now > tonumber(ARGV[5]) then
	return {'overdue', now}
end
if owner .. ':' .. revision ~= ARGV[1] then
	return {'changed', now}
end
-- With these tokens, forget.lua finds the responses of earlier runs.
local tokens = owner
for other in string.gmatch(earlier, '%S+') do
	if other ~= owner and select(2, string.gsub(tokens, ' ', '')) < 7 then
		tokens = tokens .. ' ' .. other
	end
end
redis.call('HSET', key, 'r', ARGV[2], 't', token, 'l', '0', 'x', ARGV[4], 'p', tokens)
redis.call('HINCRBY', key, 'v', 1)
redis.call('HDEL', key, 'b', 'w')
redis.call('PEXPIREAT', key, ARGV[4])
if waiting then
	for channel in string.gmatch(waiting, '%S+') do
		-- Only a hint, as in settle.lua.
		redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
	end
end
return {'ok', now}
