-- Prolongs the lease of a claim from now on.
-- KEYS: 1 record
-- ARGV: 1 token; 2 lease, ms; 3 life of the record, ms;
--       4 token of the record that the claim was written over, or ''
-- Returns {'ok' | 'settled' | 'fenced' | 'absent' | 'foreign', now}.
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local f = redis.call('HMGET', key, 't', 'l', 'x')
local owner, lease = f[1], f[2]
if not owner or not lease then
	return {redis.call('EXISTS', key) == 0 and 'absent' or 'foreign', now}
end
if owner ~= ARGV[1] then
	-- With the record from before the claim, the server has lost the claim.
	return {owner == ARGV[4] and 'absent' or 'fenced', now}
end
if lease == '0' then
	return {'settled', now}
end
-- In a forced run, the record that it is to replace may live longer.
local expiry = string.format('%.0f', math.max(now + tonumber(ARGV[3]), tonumber(f[3]) or 0))
redis.call('HSET', key, 'l', string.format('%.0f', now + tonumber(ARGV[2])), 'x', expiry)
redis.call('HINCRBY', key, 'v', 1)
redis.call('PEXPIREAT', key, expiry)
return {'ok', now}
