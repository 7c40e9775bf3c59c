package io.gridflow.tfrecord;

import java.io.IOException;

/** A file that is not what it should be; the message names the file, the record and its offset. */
public final class TFRecordException extends IOException {
    private static final long serialVersionUID = 1L;

    private final String file;
    private final long record;
    private final long offset;

    public TFRecordException(String file, long record, long offset, String problem) {
        this(file, record, offset, problem, null);
    }

    public TFRecordException(String file, long record, long offset, String problem, Throwable cause) {
        super(file + ", record " + record + " at byte " + offset + ": " + problem, cause);
        this.file = file;
        this.record = record;
        this.offset = offset;
    }

    public String file() {
        return file;
    }

    /** The record's number in its file, from 0. */
    public long record() {
        return record;
    }

    /** Where the record begins, counted in bytes after decompression. */
    public long offset() {
        return offset;
    }
}
