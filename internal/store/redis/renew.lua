-- Prolongs the lease of a claim from now on.
-- KEYS: 1 record
-- ARGV: 1 token; 2 lease, ms; 3 life of the record, ms;
--       4 token of the record that the claim was written over, or ''; 5 revision
-- Returns {'ok' | 'settled' | 'fenced' | 'absent' | 'foreign', now}.
local f = read()
if not f then
	return {f == nil and 'absent' or 'foreign', now}
end
local owner = part(56, f.at_channels)
if owner ~= ARGV[1] then
	-- With the record from before the claim, the server has lost the claim.
	return {owner == ARGV[4] and 'absent' or 'fenced', now}
end
if f.state ~= 'f' then
	return {f.state == 'w' and 'absent' or 'settled', now}
end
-- In a forced run, the record that it is to replace may live longer.
local expiry = math.max(now + tonumber(ARGV[3]), f.expiry)
redis.call('SETRANGE', key, 3, string.format('%s%013.0f%013.0f', ARGV[5], now + tonumber(ARGV[2]), expiry))
redis.call('PEXPIREAT', key, string.format('%.0f', expiry))
return {'ok', now}
