// Objects, maps, arrays and texts.
let state = 12345;
const random = (n) => { state = (Math.imul(state, 1103515245) + 12345) >>> 0; return (state >>> 8) % n; };
const orders = new Map();
for (let n = 0; n < 60000; n++) {
  const lines = [];
  for (let k = random(7); k >= 0; k--) lines.push({ article: "article-" + random(5000), count: random(9) });
  orders.set(n, { id: n, total: random(1e6) / 100, customer: "customer " + random(9000), lines });
}
const parsed = JSON.parse(JSON.stringify([...orders.values()].slice(0, 20000)));
const index = {};
for (const order of orders.values()) (index[order.customer] ||= []).push(order.id);
console.log("memory heap-node " + process.pid);
process.stdin.once("data", () => process.exit(orders.size + parsed.length + Object.keys(index).length > 0 ? 0 : 1));
