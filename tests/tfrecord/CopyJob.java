import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapred.JobClient;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.tensorflow.hadoop.io.TFRecordFileInputFormat;
import org.tensorflow.hadoop.io.TFRecordFileInputFormatV1;
import org.tensorflow.hadoop.io.TFRecordFileOutputFormat;
import org.tensorflow.hadoop.io.TFRecordFileOutputFormatV1;

/** A MapReduce job that copies records through a shuffle: [mapreduce|mapred] INPUT OUTPUT. */
public final class CopyJob extends Configured implements Tool {
    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new Configuration(), new CopyJob(), arguments));
    }

    @Override
    public int run(String[] arguments) throws Exception {
        Path input = new Path(arguments[1]);
        Path output = new Path(arguments[2]);
        return arguments[0].equals("mapred") ? runOld(input, output) : runNew(input, output);
    }

    private int runNew(Path input, Path output) throws Exception {
        Job job = Job.getInstance(getConf(), "copy");
        job.setJarByClass(TFRecordFileInputFormat.class);
        job.setInputFormatClass(TFRecordFileInputFormat.class);
        job.setOutputFormatClass(TFRecordFileOutputFormat.class);
        job.setOutputKeyClass(BytesWritable.class);
        job.setOutputValueClass(NullWritable.class);
        job.setNumReduceTasks(1);
        FileInputFormat.addInputPath(job, input);
        FileOutputFormat.setOutputPath(job, output);
        return job.waitForCompletion(false) ? 0 : 1;
    }

    private int runOld(Path input, Path output) throws IOException {
        JobConf job = new JobConf(getConf(), TFRecordFileInputFormatV1.class);
        job.setInputFormat(TFRecordFileInputFormatV1.class);
        job.setOutputFormat(TFRecordFileOutputFormatV1.class);
        job.setOutputKeyClass(BytesWritable.class);
        job.setOutputValueClass(NullWritable.class);
        job.setNumReduceTasks(1);
        org.apache.hadoop.mapred.FileInputFormat.addInputPath(job, input);
        org.apache.hadoop.mapred.FileOutputFormat.setOutputPath(job, output);
        return JobClient.runJob(job).isSuccessful() ? 0 : 1;
    }
}
