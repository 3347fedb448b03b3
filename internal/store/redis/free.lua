-- Frees a record on an operator's behalf, as the caller has looked it up.
-- KEYS: 1 record
-- ARGV: 1 what is replaced, '<token>:<revision>'; 2 record to write; 3 its token;
--       4 its expiry, ms; 5 time of this server after which nothing is written, ms
-- Returns {'ok' | 'absent' | 'changed' | 'overdue' | 'foreign', now}.
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if now > tonumber(ARGV[5]) then
	return {'overdue', now}
end
local f = redis.call('HMGET', key, 't', 'v', 'w', 'p')
local owner, revision, waiting = f[1], f[2], f[3]
if not owner or not revision then
	return {redis.call('EXISTS', key) == 0 and 'absent' or 'foreign', now}
end
if owner == ARGV[3] then
	return {'ok', now} -- the same command again, whose reply was lost
end
if owner .. ':' .. revision ~= ARGV[1] then
	return {'changed', now}
end
-- What the run before left for those who waited is forgotten with the record.
local earlier = owner
for other in string.gmatch(f[4] or '', '%S+') do
	if other ~= owner and select(2, string.gsub(earlier, ' ', '')) < 7 then
		earlier = earlier .. ' ' .. other
	end
end
redis.call('HSET', key, 'r', ARGV[2], 't', ARGV[3], 'l', '0', 'x', ARGV[4], 'p', earlier)
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
