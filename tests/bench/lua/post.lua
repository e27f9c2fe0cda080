-- wrk: POST one body per thread and, if the right answers are known, compare every answer with them.
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

right, wrong = 0, 0

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = bodies[client % #bodies + 1]
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
