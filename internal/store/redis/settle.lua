-- Ends a claim and wakes who waits for it. On the common way it compares the token and
-- writes the value; so it does not begin with head.lua, but knows its offsets.
-- KEYS: 1 record; where a response lies beside it also 2 its name, and where that is
--       large 3 the name under which it was put before this
-- ARGV: 1 value to write, with nobody who waits and no earlier tokens; its token is that of
--         the claim, unless 8 is given; 2 its life, ms;
--       what follows is left out on the common way, or '':
--       3 token of the record that the claim was written over;
--       4 life of the response in KEYS[2], ms; 5 that response, where KEYS[3] is not given;
--       6 for a claim that is withdrawn, how long the value is left where there is none, ms:
--         it says to a copy of the claim that comes late that nobody runs under it;
--       7 channel for those who have a copy of the response that is replaced;
--       8 token of the claim where a forced run keeps nothing: it leaves the record that it
--         was to replace, with the response that is in the value. 2 is its expiry then
-- Returns 'ok' | 'settled' | 'fenced' | 'absent' | 'no response' | 'foreign'.
local key, value, left = KEYS[1], ARGV[1], ARGV[8]
local token = left or string.sub(value, 57, 56 + tonumber(string.sub(value, 40, 42)))
local head = redis.call('GETRANGE', key, '0', '254') -- with the longest token

if string.sub(head, 1, 3) ~= 'D1f' or tonumber(string.sub(head, 40, 42)) ~= #token or string.sub(head, 57, 56 + #token) ~= token then
	if KEYS[3] then
		redis.call('DEL', KEYS[3])
	end
	if head == '' and redis.call('EXISTS', key) == 0 then
		if (ARGV[6] or '') ~= '' then
			redis.call('SET', key, 'D1w' .. string.sub(value, 4), 'PX', ARGV[6])
		end
		return 'absent'
	end
	local length = tonumber(string.sub(head, 40, 42))
	if string.sub(head, 1, 2) ~= 'D1' or not length then
		return 'foreign'
	end
	local owner = string.sub(head, 57, 56 + length)
	if owner == token then
		return string.sub(head, 3, 3) == 'w' and 'absent' or 'settled'
	end
	if owner == ARGV[3] then
		return 'absent' -- as in renew.lua
	end
	if left and owner == string.sub(value, 57, 56 + tonumber(string.sub(value, 40, 42))) then
		return 'settled'
	end
	return 'fenced'
end

if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
	return 'no response'
end
local waiting = ''
if left or string.sub(head, 43, 50) ~= '00000000' then -- others wait, or ran before
	local at = 56 + #token
	local channels, earlier = tonumber(string.sub(head, 43, 47)), tonumber(string.sub(head, 48, 50))
	if channels > 0 then
		waiting = redis.call('GETRANGE', key, at, at + channels - 1)
	end
	if earlier > 0 then
		local after = 56 + tonumber(string.sub(value, 40, 42))
		value = string.sub(value, 1, 47) .. string.sub(head, 48, 50) .. string.sub(value, 51, after) ..
			redis.call('GETRANGE', key, at + channels, at + channels + earlier - 1) .. string.sub(value, after + 1)
	end
	if left then
		value = value .. redis.call('GETRANGE', key, at + channels + earlier + tonumber(string.sub(head, 51, 56)), -1)
	end
end
-- The response first. Redis takes back nothing of a script that it stops, and a record that
-- is complete without its response would stay so: for the next attempt, it is settled.
local function refused(...)
	local reply = redis.pcall(...)
	return type(reply) == 'table' and reply.err and reply
end
local failed
if KEYS[3] then
	failed = refused('RENAME', KEYS[3], KEYS[2]) or refused('PEXPIRE', KEYS[2], ARGV[4])
elseif KEYS[2] then
	failed = refused('SET', KEYS[2], ARGV[5], 'PX', ARGV[4])
end
failed = failed or refused('SET', key, value, left and 'PXAT' or 'PX', ARGV[2])
if failed then
	if KEYS[2] then
		-- Nobody else has these names, and the next attempt puts the response anew.
		redis.call('DEL', unpack(KEYS, 2))
	end
	return failed
end
if (ARGV[7] or '') ~= '' then
	waiting = waiting .. ' ' .. ARGV[7]
end
for channel in string.gmatch(waiting, '%S+') do
	-- Only a hint: without the right to publish, the claim is settled all the same.
	redis.pcall('PUBLISH', channel, string.match(key, '{(%x+)}$'))
end
return 'ok'
