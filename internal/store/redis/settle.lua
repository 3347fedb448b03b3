-- Ends a claim and wakes who waits for it.
-- KEYS: 1 record; where the response is not kept in the record also 2 response
--       of the run, and 3 where it was put before this
-- ARGV: 1 token; 2 record to write; 3 life of the record, ms;
--       4 life of the response in KEYS[2], ms; 5 response to keep in the record, or '';
--       6 token of the record to write. It is not that of 1 where a forced run
--         keeps nothing: it leaves the record that it was to replace;
--       7 that record's expiry, ms;
--       8 token of the record that the claim was written over, or ''
-- Returns {'ok' | 'settled' | 'fenced' | 'absent' | 'no response' | 'foreign', now}.
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function refuse(word)
	if KEYS[3] then
		redis.call('DEL', KEYS[3])
	end
	return {word, now}
end

local f = redis.call('HMGET', key, 't', 'l', 'w')
local owner, lease, waiting = f[1], f[2], f[3]
if not owner or not lease then
	return refuse(redis.call('EXISTS', key) == 0 and 'absent' or 'foreign')
end
local leaves = ARGV[6] ~= ARGV[1]
if owner ~= ARGV[1] and owner == ARGV[8] then
	return refuse('absent') -- as in renew.lua
end
if owner ~= ARGV[1] then
	return refuse((leaves and owner == ARGV[6]) and 'settled' or 'fenced')
end
if lease == '0' then
	return refuse('settled')
end
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
	return refuse('no response')
end
local expiry = string.format('%.0f', leaves and tonumber(ARGV[7]) or now + tonumber(ARGV[3]))
redis.call('HSET', key, 'r', ARGV[2], 't', ARGV[6], 'l', '0', 'x', expiry)
if ARGV[5] ~= '' then
	redis.call('HSET', key, 'b', ARGV[5])
elseif not leaves then
	redis.call('HDEL', key, 'b')
end
redis.call('HINCRBY', key, 'v', 1)
redis.call('HDEL', key, 'w')
redis.call('PEXPIREAT', key, expiry)
if KEYS[3] then
	redis.call('RENAME', KEYS[3], KEYS[2])
	redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
if waiting then
	for channel in string.gmatch(waiting, '%S+') do
		-- Only a hint: without the right to publish, the claim is settled all the same.
		redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
	end
end
return {'ok', now}
