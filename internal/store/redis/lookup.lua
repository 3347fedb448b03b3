-- Reads a record as it stands.
-- KEYS: 1 record
-- Returns {what, now, ...} as claim.lua does for 'absent', 'foreign' and 'found'.
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local f = redis.call('HMGET', key, 'r', 't', 'l', 'v', 'x')
if not (f[1] and f[2] and f[3] and f[4] and f[5]) then
	return {redis.call('EXISTS', key) == 0 and 'absent' or 'foreign', now}
end
return {'found', now, f[1], f[2], f[3], f[4], f[5], false}
