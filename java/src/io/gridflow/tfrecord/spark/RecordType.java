package io.gridflow.tfrecord.spark;

/** What the data of each record is. */
enum RecordType {
    EXAMPLE("Example"),
    SEQUENCE_EXAMPLE("SequenceExample"),
    BYTE_ARRAY("ByteArray");

    private final String text;

    RecordType(String text) {
        this.text = text;
    }

    static RecordType named(String text) {
        for (RecordType type : values()) {
            if (type.text.equalsIgnoreCase(text)) {
                return type;
            }
        }
        throw new IllegalArgumentException(
            "recordType is '" + text + "', but must be one of Example, SequenceExample, ByteArray");
    }

    @Override
    public String toString() {
        return text;
    }
}
