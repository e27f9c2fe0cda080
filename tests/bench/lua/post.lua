-- wrk: POST one row per thread and, if the right answers are known, compare every answer with them.
-- No two requests in a row have the same bytes: numbers end with zeros more or less, and a proxy adds ids.
-- BENCH_BODIES    file with one body a line; thread n sends line n (again from the first after the last)
-- BENCH_ANSWERS   file with the right answer to each body; absent: answers are not looked at, which
--                 spares wrk the work (timed runs)
-- Prints one line that begins with BENCH and holds JSON.

local function lines_of(path)
  local lines = {}
  if path then
    for line in io.lines(path) do lines[#lines + 1] = line end
  end
  return lines
end

local bodies = lines_of(os.getenv("BENCH_BODIES"))
local answers = lines_of(os.getenv("BENCH_ANSWERS"))
local threads = {}

function setup(thread)
  thread:set("client", #threads)
  threads[#threads + 1] = thread
end

local function numbers(text)
  local found = {}
  for number in text:gmatch("-?%d[%d.eE+-]*") do found[#found + 1] = tonumber(number) end
  return found
end

-- The same numbers up to float32 rounding: BLAS sums in another order in a batch than alone.
local function same(body, expected)
  local given = numbers(body)
  if #given ~= #expected then return false end
  for i, number in ipairs(given) do
    if math.abs(number - expected[i]) > 1e-4 * math.max(1, math.abs(expected[i])) then return false end
  end
  return true
end

local function hex(digits)
  local words = {}
  for i = 1, digits / 8 do words[i] = string.format("%08x", math.random(0, 2 ^ 31 - 1)) end
  return table.concat(words)
end

-- The same JSON in other words: a fraction may end with zeros, and spaces may follow.
local function longer(body)
  local function zeros(fraction) return fraction .. string.rep("0", math.random(0, 4)) end
  return body:gsub("%.%d+", zeros) .. string.rep(" ", math.random(0, 7))
end

local function headers_of_a_proxy()
  return {
    ["Content-Type"] = "application/json",
    ["User-Agent"] = "python-httpx/0.28",
    ["Accept"] = "*/*",
    ["X-Forwarded-For"] = "10.0.0.7",
    ["X-Forwarded-Proto"] = "http",
    ["X-Envoy-Attempt-Count"] = "1",
    ["X-Request-Id"] = hex(32),
    ["X-B3-TraceId"] = hex(32),
    ["X-B3-SpanId"] = hex(16),
    ["X-B3-Sampled"] = "0",
  }
end

local requests, sent = {}, 0
right, wrong = 0, 0

function request()
  sent = sent + 1
  return requests[sent % #requests + 1]
end

function init(args)
  math.randomseed(client + 1)
  local body = bodies[client % #bodies + 1]
  for i = 1, 128 do requests[i] = wrk.format("POST", nil, headers_of_a_proxy(), longer(body)) end
  if #answers > 0 then
    local text = answers[client % #answers + 1]
    local expected = numbers(text)
    response = function(status, headers, body)
      if status == 200 and (body == text or same(body, expected)) then
        right = right + 1
      else
        wrong = wrong + 1
      end
    end
  end
end

function done(summary, latency, requests)
  local errors, rights, wrongs = summary.errors, 0, 0
  for _, thread in ipairs(threads) do
    rights = rights + thread:get("right")
    wrongs = wrongs + thread:get("wrong")
  end
  io.write(string.format(
    'BENCH {"requests":%d,"duration_us":%d,"connect":%d,"read":%d,"write":%d,"status":%d,'
      .. '"timeout":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,"right":%d,"wrong":%d}\n',
    summary.requests, summary.duration, errors.connect, errors.read, errors.write, errors.status,
    errors.timeout, latency:percentile(50), latency:percentile(99), latency.max, rights, wrongs))
end
