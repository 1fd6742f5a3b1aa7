// Characters by name, a word index of Go sources, and orders, in java.util collections.
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;

class Heap {
    record Character(int point, String name, String category, List<String> fields) {}

    record Line(String article, double price, int count) {}

    static class Order {
        long id;
        String customer;
        LocalDateTime at;
        Line[] lines;
        Boolean paid;
    }

    record Place(int file, int line) {}

    public static void main(String[] arguments) throws IOException {
        Map<String, Character> characters = new HashMap<>();
        for (String line : Files.readAllLines(Path.of("/usr/share/unicode/UnicodeData.txt"))) {
            String[] fields = line.split(";", -1);
            characters.put(fields[1], new Character(Integer.parseInt(fields[0], 16), fields[1], fields[2], List.of(fields)));
        }
        List<Path> paths;
        try (Stream<Path> all = Files.walk(Path.of("/usr/lib/go/src/").toRealPath())) {
            paths = all.filter(path -> path.toString().endsWith(".go")).sorted().collect(Collectors.toList());
        }
        TreeMap<String, List<Place>> index = new TreeMap<>();
        long read = 0;
        for (int file = 0; file < paths.size() && read < 5_000_000; file++) {
            String content = new String(Files.readAllBytes(paths.get(file)), StandardCharsets.ISO_8859_1);
            read += content.length();
            String[] lines = content.split("\n");
            for (int line = 0; line < lines.length; line++) {
                for (String word : lines[line].split("[^A-Za-z0-9_]+")) {
                    List<Place> places = index.computeIfAbsent(word, (unused) -> new ArrayList<>());
                    if (places.size() < 30) places.add(new Place(file, line));
                }
            }
        }
        List<String> words = new ArrayList<>(index.keySet());
        Random random = new Random(5);
        Map<Long, Order> orders = new HashMap<>();
        for (long id = 0; id < 40_000; id++) {
            Order order = new Order();
            order.id = id;
            order.customer = words.get(random.nextInt(words.size())) + " " + words.get(random.nextInt(words.size()));
            order.at = LocalDateTime.of(2024, 1 + random.nextInt(12), 1 + random.nextInt(28), random.nextInt(24), random.nextInt(60));
            order.lines = new Line[1 + random.nextInt(6)];
            for (int at = 0; at < order.lines.length; at++) {
                order.lines[at] = new Line("article-" + random.nextInt(4000), random.nextInt(100000) / 100.0, 1 + random.nextInt(9));
            }
            order.paid = random.nextBoolean();
            orders.put(id, order);
        }
        System.gc();
        System.out.println("memory heap-java " + ProcessHandle.current().pid());
        System.in.read();
        System.exit(characters.size() + index.size() + orders.size() > 0 ? 0 : 1);
    }
}
