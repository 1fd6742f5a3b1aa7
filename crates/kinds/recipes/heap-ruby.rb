# Ruby's standard library as syntax trees, tables of languages and places from JSON, and orders.
require "date"
require "json"
require "ripper"
sources = Dir[File.join(RbConfig::CONFIG["rubylibdir"], "**/*.rb")].sort
trees = sources.select { |path| File.size(path) > 3000 }.first(70).map { |path| Ripper.sexp(File.read(path)) }
tables = Dir["/usr/share/iso-codes/json/*.json"].sort.map { |path| JSON.parse(File.read(path)) }
names = tables.flat_map { |table| table.values.grep(Array).flatten }.grep(Hash).map { |row| row["name"] }.compact
Order = Struct.new(:id, :customer, :at, :lines, :notes)
Line = Struct.new(:article, :price, :count)
random = Random.new(3)
orders = {}
30_000.times do |id|
  lines = Array.new(1 + random.rand(6)) { Line.new("article-#{random.rand(4000)}", random.rand(100_000) / 100.0, 1 + random.rand(9)) }
  notes = random.rand(4).zero? ? { by: names[random.rand(names.size)], text: "delivered to #{names[random.rand(names.size)]}" } : nil
  orders[id] = Order.new(id, names[random.rand(names.size)].dup, DateTime.new(2024, 1 + random.rand(12), 1 + random.rand(28), random.rand(24)), lines, notes)
end
words = Hash.new(0)
sources.first(300).each { |path| File.read(path).scan(/\w+/) { |word| words[word] += 1 } }
$stdout.puts "memory heap-ruby #{$$}"
$stdout.flush
$stdin.gets
exit(trees.size + tables.size + orders.size + words.size > 0)
