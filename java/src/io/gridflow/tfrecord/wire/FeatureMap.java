package io.gridflow.tfrecord.wire;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/**
 * Finds, in the map of features of one record after the other, those that are asked for.
 *
 * <pre>
 *   message Features { map&lt;string, Feature&gt; feature = 1; }      an entry: key = 1, value = 2
 * </pre>
 *
 * <p>Records of a file mostly hold the same names in the same order, so each entry's key is first compared with the
 * key that stood there in the record before. Of entries with the same key, the last one counts.
 */
public final class FeatureMap {
    private static final int UNKNOWN = -1;
    private static final int MAX_LEARNED = 1 << 14;

    private final boolean isGrowing;
    private int size;
    private byte[][] names = new byte[8][];
    private byte[][] sources = new byte[8][];
    private int[] starts = new int[8];
    private int[] ends = new int[8];
    private int[] table = new int[0];
    private byte[][] expectedKeys = new byte[32][];
    private int[] expectedEntries = new int[32];
    private int place;

    /** Find these names; an entry's number is its name's place in the list. */
    public FeatureMap(List<String> names) {
        isGrowing = false;
        names.forEach(name -> add(name.getBytes(StandardCharsets.UTF_8)));
    }

    private FeatureMap() {
        isGrowing = true;
    }

    /** Find all names there are: each one that was never seen gets the next number. */
    public static FeatureMap ofAll() {
        return new FeatureMap();
    }

    private void add(byte[] name) {
        if (size == names.length) {
            names = Arrays.copyOf(names, 2 * size);
            sources = Arrays.copyOf(sources, 2 * size);
            starts = Arrays.copyOf(starts, 2 * size);
            ends = Arrays.copyOf(ends, 2 * size);
        }
        names[size++] = name;
        if (2 * size > table.length) {
            table = new int[Math.max(16, 2 * table.length)];
            Arrays.fill(table, UNKNOWN);
            for (int entry = 0; entry < size; entry++) {
                enter(entry);
            }
        } else {
            enter(size - 1);
        }
    }

    private void enter(int entry) {
        int slot = hash(names[entry], 0, names[entry].length);
        while (table[slot] != UNKNOWN) {
            slot = slot + 1 & table.length - 1;
        }
        table[slot] = entry;
    }

    /** How many names there are. */
    public int size() {
        return size;
    }

    public String name(int entry) {
        return new String(names[entry], StandardCharsets.UTF_8);
    }

    /** Forget the record before. */
    public void clear() {
        place = 0;
        Arrays.fill(sources, 0, size, null);
    }

    /** Take up the entries of a Features or FeatureLists message; a record may have several. */
    public void scan(byte[] bytes, int start, int end) {
        int next = start;
        while (next < end) {
            int value = Wire.varintEnd(bytes, next, end);
            int tag = Wire.tag(bytes, next, value);
            if (tag == Wire.TAG_1) {
                int body = Wire.varintEnd(bytes, value, end);
                next = body + Wire.length(bytes, value, body, end);
                scanEntry(bytes, body, next);
            } else {
                next = Wire.skip(bytes, tag, value, end);
            }
        }
    }

    private void scanEntry(byte[] bytes, int start, int end) {
        if (start < end && bytes[start] == Wire.TAG_1) {
            int key = Wire.varintEnd(bytes, start + 1, end);
            int keyEnd = key + Wire.length(bytes, start + 1, key, end);
            if (keyEnd < end && bytes[keyEnd] == Wire.TAG_2) {
                int value = Wire.varintEnd(bytes, keyEnd + 1, end);
                if (value + Wire.length(bytes, keyEnd + 1, value, end) == end) {
                    put(find(bytes, key, keyEnd), bytes, value, end);
                    return;
                }
            }
        }
        scanOddEntry(bytes, start, end);
    }

    /** An entry with its fields in another order, left out, given twice or unknown; the last key counts. */
    private void scanOddEntry(byte[] bytes, int start, int end) {
        Scratch merged = new Scratch();
        int key = start;
        int keyEnd = start;
        for (int next = start; next < end; ) {
            int value = Wire.varintEnd(bytes, next, end);
            int tag = Wire.tag(bytes, next, value);
            next = Wire.skip(bytes, tag, value, end);
            if (tag == Wire.TAG_1) {
                key = Wire.delimitedStart(bytes, value, end);
                keyEnd = next;
            } else if (tag == Wire.TAG_2) {
                // Protobuf merges messages by joining their bytes.
                merged.add(bytes, Wire.delimitedStart(bytes, value, end), next);
            }
        }
        put(find(bytes, key, keyEnd), merged.bytes(), 0, merged.length());
    }

    private void put(int entry, byte[] source, int start, int end) {
        if (entry != UNKNOWN) {
            sources[entry] = source;
            starts[entry] = start;
            ends[entry] = end;
        }
    }

    private int find(byte[] bytes, int start, int end) {
        int at = place++;
        if (at < expectedKeys.length) {
            byte[] expected = expectedKeys[at];
            if (expected != null && Arrays.equals(expected, 0, expected.length, bytes, start, end)) {
                return expectedEntries[at];
            }
        }
        if (!Utf8.isValid(bytes, start, end)) {
            throw WireException.malformed("the name of a feature is not UTF-8");
        }
        int entry = lookUp(bytes, start, end);
        if (entry == UNKNOWN && isGrowing) {
            entry = size;
            add(Arrays.copyOfRange(bytes, start, end));
        }
        if (at < MAX_LEARNED) {
            learn(at, entry == UNKNOWN ? Arrays.copyOfRange(bytes, start, end) : names[entry], entry);
        }
        return entry;
    }

    private int lookUp(byte[] bytes, int start, int end) {
        if (size == 0) {
            return UNKNOWN;
        }
        for (int slot = hash(bytes, start, end); table[slot] != UNKNOWN; slot = slot + 1 & table.length - 1) {
            byte[] name = names[table[slot]];
            if (Arrays.equals(name, 0, name.length, bytes, start, end)) {
                return table[slot];
            }
        }
        return UNKNOWN;
    }

    private void learn(int at, byte[] key, int entry) {
        if (at >= expectedKeys.length) {
            expectedKeys = Arrays.copyOf(expectedKeys, 2 * at);
            expectedEntries = Arrays.copyOf(expectedEntries, 2 * at);
        }
        expectedKeys[at] = key;
        expectedEntries[at] = entry;
    }

    private int hash(byte[] bytes, int start, int end) {
        int hash = 0;
        for (int i = start; i < end; i++) {
            hash = 31 * hash + bytes[i];
        }
        return (hash ^ hash >>> 16) & table.length - 1;
    }

    /** The array that holds the entry's value, or null if the record has no such entry. */
    public byte[] source(int entry) {
        return sources[entry];
    }

    public int start(int entry) {
        return starts[entry];
    }

    public int end(int entry) {
        return ends[entry];
    }
}
