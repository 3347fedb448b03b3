-- Removes a record with the responses of its runs, whatever it is, but for one
-- whose run is alive.
-- KEYS: 1 record; 2... responses of the runs with the tokens that the caller saw
-- ARGV: 1 those tokens, as 'changed' has returned them, or '' for none;
--       2 '<token>:<revision>' of a record that was returned with 'in flight' and
--         cannot be read, or '': the lease of such a one means nothing;
--       3 channel for those who have a copy of the response
--       4 '<token>:<revision>' of the only record to remove, 'foreign' for one that is
--         not ours, 'none' to be told what there is, or '' for any
-- Returns {'ok' | 'absent' | 'foreign', now}, {'in flight', now, value without a
-- response, its '<token>:<revision>'}, or {'changed', now, the same value, tokens as they
-- are now, its '<token>:<revision>'}.
local kind = redis.call('TYPE', key)
kind = kind.ok or kind
if kind == 'none' then
	return {'absent', now}
end
local waiting = ''
local f = kind == 'string' and read()
if not f and ARGV[4] ~= '' and ARGV[4] ~= 'foreign' then
	return {'foreign', now}
end
if f then
	local owner = part(56, f.at_channels)
	if f.state == 'f' and f.lease > now and ARGV[2] ~= owner .. ':' .. f.revision then
		return {'in flight', now, part(0, f.at_response), owner .. ':' .. f.revision}
	end
	local earlier = part(f.at_earlier, f.at_record)
	local tokens = earlier == '' and owner or (owner .. ' ' .. earlier)
	local version = owner .. ':' .. f.revision
	if tokens ~= ARGV[1] or (ARGV[4] ~= '' and ARGV[4] ~= version) then
		return {'changed', now, part(0, f.at_response), tokens, version}
	end
	waiting = part(f.at_channels, f.at_earlier)
end
redis.call('DEL', unpack(KEYS))
publish(waiting .. ' ' .. ARGV[3])
return {'ok', now}
