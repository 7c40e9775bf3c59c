package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordReader;
import java.io.IOException;
import java.io.InputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionCodecFactory;
import org.apache.hadoop.io.compress.DefaultCodec;

/** Opens files of any file system that Hadoop knows. */
public final class TFRecordFiles {
    private TFRecordFiles() {}

    /** Open a file for reading; gzip and zlib are seen by the first bytes, other codecs by the file's name. */
    public static TFRecordReader open(Path path, Configuration conf, boolean isChecked) throws IOException {
        FSDataInputStream in = path.getFileSystem(conf).open(path);
        return read(in, path, conf, isChecked);
    }

    static TFRecordReader read(FSDataInputStream in, Path path, Configuration conf, boolean isChecked)
        throws IOException {
        try {
            CompressionCodec codec = new CompressionCodecFactory(conf).getCodec(path);
            // Gzip is a DefaultCodec too.
            InputStream plain = codec == null || codec instanceof DefaultCodec ? in : codec.createInputStream(in);
            return new TFRecordReader(plain, path.toString(), isChecked);
        } catch (IOException | RuntimeException error) {
            in.close();
            throw error;
        }
    }
}
