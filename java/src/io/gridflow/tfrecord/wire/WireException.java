package io.gridflow.tfrecord.wire;

/** A message that is not well formed, or a value that its column cannot hold; who reads the file adds where. */
public final class WireException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public WireException(String message) {
        super(message);
    }

    static WireException malformed(String problem) {
        return new WireException("not a well-formed message: " + problem);
    }
}
