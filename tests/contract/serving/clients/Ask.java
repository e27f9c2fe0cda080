import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The JDK's client with its defaults: HTTP/2 is wished for. Arguments: URL, how many, how many at once. */
public class Ask {
    public static void main(String[] arguments) throws Exception {
        URI url = URI.create(arguments[0]);
        int count = Integer.parseInt(arguments[1]), atOnce = Integer.parseInt(arguments[2]);
        HttpClient client = HttpClient.newHttpClient();
        int right = 0;
        for (int first = 0; first < count; first += atOnce) {
            List<CompletableFuture<HttpResponse<String>>> asked = new ArrayList<>();
            for (int number = first; number < first + atOnce; number++)
                asked.add(client.sendAsync(
                    HttpRequest.newBuilder(url).header("content-type", "application/json")
                        .POST(BodyPublishers.ofString("" + number)).build(),
                    BodyHandlers.ofString()));
            for (int number = first; number < first + atOnce; number++) {
                HttpResponse<String> answer = asked.get(number - first).join();
                if (answer.statusCode() != 200 || !answer.body().equals("" + number))
                    throw new Exception(number + ": " + answer.statusCode() + " " + answer.body());
                right++;
            }
        }
        System.out.println(right + " right");
    }
}
