// Node's fetch with its defaults. Arguments: URL, how many, how many at once.
const [url, count, atOnce] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];

async function seat(first) {
  let right = 0;
  for (let number = first; number < count; number += atOnce) {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(url, { method: "POST", headers, body: String(number) });
    const body = await answer.text();
    if (answer.status !== 200 || body !== String(number)) {
      throw new Error(`${number}: ${answer.status} ${body}`);
    }
    right += 1;
  }
  return right;
}

const done = await Promise.all([...Array(atOnce).keys()].map(seat));
console.log(`${done.reduce((sum, right) => sum + right, 0)} right`);
