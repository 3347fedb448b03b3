-- Ends a claim and wakes who waits for it. On the common way it compares the token and
-- writes the value; so it does not begin with head.lua, but knows its offsets.
-- KEYS: 1 record; where a response lies beside it also 2 its name, and where that is
--       large 3 the name under which it was put before this
-- ARGV: 1 token; 2 value to write, with nobody who waits and no earlier tokens;
--       3 'PX' or 'PXAT'; 4 its argument, ms;
--       5 token of the record that the claim was written over, or '';
--       what follows is left out on the common way:
--       6 life of the response in KEYS[2], ms; 7 that response, where KEYS[3] is not given;
--       8 token of the value to write where a forced run keeps nothing: it leaves the
--         record that it was to replace, with the response that is in the value;
--       9 for a claim that is withdrawn, how long the value is left where there is none, ms:
--         it says to a copy of the claim that comes late that nobody runs under it;
--       10 channel for those who have a copy of the response that is replaced
-- Returns 'ok' | 'settled' | 'fenced' | 'absent' | 'no response' | 'foreign'.
local key, token = KEYS[1], ARGV[1]
local head = redis.call('GETRANGE', key, 0, 55 + #token)

if string.sub(head, 1, 3) ~= 'D1f' or tonumber(string.sub(head, 40, 42)) ~= #token or string.sub(head, 57) ~= token then
	if KEYS[3] then
		redis.call('DEL', KEYS[3])
	end
	if head == '' and redis.call('EXISTS', key) == 0 then
		if (ARGV[9] or '') ~= '' then
			redis.call('SET', key, 'D1w' .. string.sub(ARGV[2], 4), 'PX', ARGV[9])
		end
		return 'absent'
	end
	local length = tonumber(string.sub(head, 40, 42))
	if string.sub(head, 1, 2) ~= 'D1' or not length then
		return 'foreign'
	end
	local owner = redis.call('GETRANGE', key, 56, 55 + length)
	if owner == token then
		return string.sub(head, 3, 3) == 'w' and 'absent' or 'settled'
	end
	if owner == ARGV[5] then
		return 'absent' -- as in renew.lua
	end
	return owner == ARGV[8] and 'settled' or 'fenced'
end

if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
	return 'no response'
end
local value, at = ARGV[2], 56 + #token
local channels, earlier = tonumber(string.sub(head, 43, 47)), tonumber(string.sub(head, 48, 50))
local waiting = channels > 0 and redis.call('GETRANGE', key, at, at + channels - 1) or ''
if earlier > 0 then
	local after = 56 + tonumber(string.sub(value, 40, 42))
	value = string.sub(value, 1, 47) .. string.sub(head, 48, 50) .. string.sub(value, 51, after) ..
		redis.call('GETRANGE', key, at + channels, at + channels + earlier - 1) .. string.sub(value, after + 1)
end
if (ARGV[8] or '') ~= '' then
	value = value .. redis.call('GETRANGE', key, at + channels + earlier + tonumber(string.sub(head, 51, 56)), -1)
end
local written = redis.pcall('SET', key, value, ARGV[3], ARGV[4])
if written.err then
	if KEYS[3] then
		redis.call('DEL', KEYS[3]) -- the next attempt puts it under another name
	end
	return written
end
if KEYS[3] then
	redis.call('RENAME', KEYS[3], KEYS[2])
	redis.call('PEXPIRE', KEYS[2], ARGV[6])
elseif KEYS[2] then
	redis.call('SET', KEYS[2], ARGV[7], 'PX', ARGV[6])
end
if (ARGV[10] or '') ~= '' then
	waiting = waiting .. ' ' .. ARGV[10]
end
for channel in string.gmatch(waiting, '%S+') do
	-- Only a hint: without the right to publish, the claim is settled all the same.
	redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
end
return 'ok'
