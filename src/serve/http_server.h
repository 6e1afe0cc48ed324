// HTTP/1.1 over Boost.Beast: connections, limits and time-outs. Knows nothing of what is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;  // the path without its query, %-escapes left as they are
  Headers headers;           // names in lower case
  std::string body;
  std::string client;  // the address it came from

  // Empty where there is none.
  std::string_view header(std::string_view name_in_lower_case) const;
};

// A request and its answer, which is sent whole or begun and then written piece by piece. Its
// functions may be called from any thread; what is written after the client has gone is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void send(int status, std::string_view type, std::string body, Headers = {}) = 0;
  virtual void begin(int status, std::string_view type, Headers = {}) = 0;
  virtual void write(std::string piece) = 0;
  virtual void finish() = 0;
  // Nobody reads the answer any more.
  virtual bool gone() const = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                      // 0: a free one
  int64_t max_body = int64_t{8} << 20;  // bytes
  int64_t max_connections = 1024;       // more wait to be accepted
  int read_seconds = 30;                // for a request to come whole, and a piece to be taken
  int idle_seconds = 75;                // between two requests of a connection
};

class HttpServer {
 public:
  // Called in the thread of run() for each request, which it answers then or later.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // What a request that is no HTTP, too long or too slow is answered: JSON. The path is empty where
  // it did not come to be read.
  using ErrorBody =
      std::function<std::string(int status, const std::string& message, std::string_view path)>;

  // Listens from now on. Fails naming the address where it cannot.
  HttpServer(const HttpOptions&, Handler, ErrorBody);
  ~HttpServer();

  int port() const;
  // Serves in this thread until stop().
  void run();
  // From any thread: takes no connection more. Those that are open end when they are answered.
  void close_door();
  // From any thread: ends run(), whatever is under way.
  void stop();
  // Requests that were not answered yet.
  int64_t open_requests() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moe::serve
