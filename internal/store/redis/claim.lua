-- Claims a key, or reads what holds it.
-- KEYS: 1 record
-- ARGV: 1 token; 2 record to write; 3 its revision; 4 lease, ms; 5 life of the record, ms;
--       6 time of this server after which the claim is refused, ms;
--       7 inbox channel to register with a run in flight, or '';
--       8 what may be replaced: '<token>:<revision>', the claim's own token for
--         any revision of its own, or '' for nothing;
--       9 '1' when the same command was sent before and its reply was lost;
--       10 '1' to keep the response that is in the value: a forced run that keeps
--         nothing leaves it;
--       11 time before which the record must not expire, ms
-- Returns {'claimed', now, lease end, expiry}, {'overdue' | 'absent' | 'foreign',
-- now}, or {'found', now, value}.
if now > tonumber(ARGV[6]) then
	return {'overdue', now}
end
local token = ARGV[1]

local function write(channels, earlier, response)
	local lease_end, expiry = now + tonumber(ARGV[4]), math.max(now + tonumber(ARGV[5]), tonumber(ARGV[11]))
	redis.call('SET', key, value('f', ARGV[3], lease_end, expiry, token, channels, earlier, ARGV[2], response),
		'PXAT', string.format('%.0f', expiry))
	return {'claimed', now, lease_end, expiry}
end

local f = read()
if f == nil then
	if ARGV[8] ~= '' then
		return {'absent', now}
	end
	return write('', '', '')
end
if not f then
	return {'foreign', now}
end
local owner = part(56, f.at_channels)
local channels, earlier = part(f.at_channels, f.at_earlier), part(f.at_earlier, f.at_record)
if owner == token and f.state == 'f' then
	if ARGV[8] == token or (ARGV[9] == '1' and part(f.at_record, f.at_response) == ARGV[2]) then
		return write(channels, earlier, redis.call('GETRANGE', key, f.at_response, -1))
	end
elseif ARGV[8] == owner .. ':' .. f.revision then
	if f.state ~= 'f' then
		-- The answer of the run before may still be there, for those who waited for it.
		earlier = with_earlier(owner, earlier)
	end
	local response = ''
	if ARGV[10] == '1' then
		response = redis.call('GETRANGE', key, f.at_response, -1)
	end
	-- The channels of those who wait stay: they wait for the key, not for a run.
	return write(channels, earlier, response)
end
if ARGV[7] ~= '' and f.state == 'f' and f.lease > now and
	not string.find(' ' .. channels .. ' ', ' ' .. ARGV[7] .. ' ', 1, true) and #channels + 1 + #ARGV[7] <= 99999 then
	local waiting = channels == '' and ARGV[7] or (channels .. ' ' .. ARGV[7])
	-- Only a hint: a server that has no memory for it still returns the record.
	redis.pcall('SET', key, value('f', f.revision, f.lease, f.expiry, owner, waiting, earlier,
		part(f.at_record, f.at_response), redis.call('GETRANGE', key, f.at_response, -1)), 'KEEPTTL')
end
return {'found', now, redis.call('GET', key)}
