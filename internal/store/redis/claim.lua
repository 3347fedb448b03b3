-- Claims a key, or reads what holds it.
-- KEYS: 1 record
-- ARGV: 1 token; 2 record to write; 3 lease, ms; 4 life of the record, ms;
--       5 time of this server after which the claim is refused, ms;
--       6 inbox channel to register with a run in flight, or '';
--       7 what may be replaced: '<token>:<revision>', the claim's own token for
--         any revision of its own, or '' for nothing;
--       8 '1' when the same command was sent before and its reply was lost;
--       9 '1' to keep the response that is in the record: a forced run that keeps
--         nothing leaves it;
--       10 time before which the record must not expire, ms
-- Returns {'claimed', now, lease end, expiry}, {'overdue' | 'absent' | 'foreign',
-- now}, or {'found', now, record, token, lease end, revision, expiry, response}.
local key, token = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if now > tonumber(ARGV[5]) then
	return {'overdue', now}
end

local function write(revision)
	local lease_end, expiry = now + tonumber(ARGV[3]), math.max(now + tonumber(ARGV[4]), tonumber(ARGV[10]))
	redis.call('HSET', key, 'r', ARGV[2], 't', token,
		'l', string.format('%.0f', lease_end), 'v', string.format('%.0f', revision),
		'x', string.format('%.0f', expiry))
	redis.call('PEXPIREAT', key, string.format('%.0f', expiry))
	return {'claimed', now, lease_end, expiry}
end

local f = redis.call('HMGET', key, 'r', 't', 'l', 'v', 'x', 'b', 'p')
local record, owner, lease, revision, expiry = f[1], f[2], f[3], f[4], f[5]
if not owner and redis.call('EXISTS', key) == 0 then
	if ARGV[7] ~= '' then
		return {'absent', now}
	end
	return write(1)
end
if not (record and owner and lease and revision and expiry) then
	return {'foreign', now}
end
if owner == token and lease ~= '0' then
	if ARGV[7] == token or (ARGV[8] == '1' and record == ARGV[2]) then
		return write(tonumber(revision) + 1)
	end
elseif ARGV[7] == owner .. ':' .. revision then
	if lease == '0' then
		-- The answer of the run before may still be there, for those who waited for it.
		local earlier = owner
		for other in string.gmatch(f[7] or '', '%S+') do
			if select(2, string.gsub(earlier, ' ', '')) < 7 then
				earlier = earlier .. ' ' .. other
			end
		end
		redis.call('HSET', key, 'p', earlier)
	end
	if ARGV[9] ~= '1' then
		redis.call('HDEL', key, 'b')
	end
	-- The channels of those who wait (w) stay: they wait for the key, not for a run.
	return write(tonumber(revision) + 1)
end
if ARGV[6] ~= '' and (tonumber(lease) or 0) > now then
	local waiting = redis.call('HGET', key, 'w') or ''
	if not string.find(' ' .. waiting .. ' ', ' ' .. ARGV[6] .. ' ', 1, true) then
		-- Only a hint: a server that has no memory for it still returns the record.
		redis.pcall('HSET', key, 'w', waiting == '' and ARGV[6] or (waiting .. ' ' .. ARGV[6]))
	end
end
return {'found', now, record, owner, lease, revision, expiry, f[6]}
