import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.server.quota.QuotaUtils;

/**
 * The throttle times of Apache Kafka's own classes, for tests: one history and one answer a line.
 *
 * question  "rate" or "bucket", samples, seconds of a window, quota, then time in ms and value, again and again
 * answer    the throttle time after each value
 */
public class QuotaRates {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split(" ")));
            System.out.flush();
        }
    }

    private static String answer(String[] words) {
        try (Metrics metrics = new Metrics()) {
            boolean isRate = words[0].equals("rate");
            MetricConfig config = new MetricConfig()
                .samples(Integer.parseInt(words[1]))
                .timeWindow(Integer.parseInt(words[2]), TimeUnit.SECONDS)
                .quota(Quota.upperBound(Double.parseDouble(words[3])));
            Sensor sensor = metrics.sensor("s", config);
            sensor.add(metrics.metricName("m", "g"), isRate ? new Rate() : new TokenBucket());
            StringBuilder answer = new StringBuilder();
            for (int at = 4; at < words.length; at += 2) {
                long timeMs = Long.parseLong(words[at]);
                long throttleMs = 0;
                try {
                    sensor.record(Double.parseDouble(words[at + 1]), timeMs, true);
                } catch (QuotaViolationException e) {
                    throttleMs = isRate ? QuotaUtils.throttleTime(e, timeMs) : Math.round(-e.value() / e.bound() * 1000);
                }
                answer.append(throttleMs).append(' ');
            }
            return answer.toString().trim();
        }
    }
}
