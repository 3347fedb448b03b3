-- Removes a record with the responses of its runs, whatever it is, but for one
-- whose run is alive.
-- KEYS: 1 record; 2... responses of the runs with the tokens that the caller saw
-- ARGV: 1 those tokens, as 'changed' has returned them, or '' for none;
--       2 '<token>:<revision>' of a record that was returned with 'in flight' and
--         cannot be read, or '': the lease of such a one means nothing;
--       3 channel for those who have a copy of the response
-- Returns {'ok' | 'absent', now}, {'in flight', now, value without a response, its
-- '<token>:<revision>'}, or {'changed', now, the same value, tokens as they are now}.
local kind = redis.call('TYPE', key)
kind = kind.ok or kind
if kind == 'none' then
	return {'absent', now}
end
local waiting = ''
local f = kind == 'string' and read()
if f then
	local owner = part(56, f.at_channels)
	if f.state == 'f' and f.lease > now and ARGV[2] ~= owner .. ':' .. f.revision then
		return {'in flight', now, part(0, f.at_response), owner .. ':' .. f.revision}
	end
	local earlier = part(f.at_earlier, f.at_record)
	local tokens = earlier == '' and owner or (owner .. ' ' .. earlier)
	if tokens ~= ARGV[1] then
		return {'changed', now, part(0, f.at_response), tokens}
	end
	waiting = part(f.at_channels, f.at_earlier)
end
redis.call('DEL', unpack(KEYS))
publish(waiting .. ' ' .. ARGV[3])
return {'ok', now}
