#include "serve/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/nearest.h"

namespace moe::serve {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = net::ip::tcp;
using std::chrono::seconds;

constexpr uint32_t kMaxHeader = 16 << 10;  // bytes
constexpr int kLingerBytes = 1 << 16;      // read of a body that is refused, before closing

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

std::string head_of(int status, std::string_view type, const Headers& headers) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: moe\r\nContent-Type: {}\r\n", status,
                                 std::string_view(reason.data(), reason.size()), type);
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  return head;
}

}  // namespace

// What the connections of a server share. All but `open_requests` belongs to the thread of run().
struct Host {
  HttpOptions options;
  HttpServer::Handler handler;
  HttpServer::ErrorBody error_body;
  bool closing = false;
  int64_t connections = 0;
  std::atomic<int64_t> open_requests{0};
  std::function<void()> connection_ended = [] {};
  net::io_context io{1};  // last, as connections that end with it look at the others
};

namespace {

// One connection: requests one after the other, each read whole, handed over and answered. Runs in
// the thread of run(); a handler's thread reaches it by post() only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Host& host, tcp::socket socket)
      : host_(host), socket_(std::move(socket)), deadline_(host.io) {
    boost::system::error_code unknown;
    socket_.set_option(tcp::no_delay(true), unknown);
    const auto peer = socket_.remote_endpoint(unknown);
    if (!unknown) client_ = peer.address().to_string();
    ++host_.connections;
  }
  ~Connection() {
    if (counted_) --host_.open_requests;
    --host_.connections;
    host_.connection_ended();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void read_request();
  // From any thread: bytes to be written, in the order of the calls.
  void give(std::string bytes, bool last);
  bool gone() const { return gone_; }
  Host& host() { return host_; }
  bool keeps_alive() const { return keep_alive_ && !host_.closing; }
  bool is_http_1_0() const { return version_ == 10; }

 private:
  using Parser = http::request_parser<http::string_body>;

  void allow(std::chrono::seconds time);
  void allow_any_time();
  void read_body();
  HttpRequest taken_request();
  void hand_over();
  void refuse(int status, const std::string& message);
  void fail_reading(const boost::system::error_code& error);
  void watch_for_end();
  void take_given();
  void put(std::string bytes, bool last);
  void write_next();
  void close();

  Host& host_;
  tcp::socket socket_;
  net::steady_timer deadline_;
  bool too_late_ = false;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::string client_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  std::mutex given_mutex_;
  std::vector<std::pair<std::string, bool>> given_;
  std::deque<std::string> out_;
  bool writing_ = false;
  bool answered_ = true;  // no request is being read or waits for its answer
  bool counted_ = false;  // among the open requests
  std::atomic<bool> gone_{false};
};

// What a handler holds.
class Answer : public Exchange {
 public:
  Answer(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  // A handler that forgot to answer would leave the client waiting. The connection ends in the
  // thread of run(), whoever lets go of it last.
  ~Answer() override {
    try {
      if (state_ == State::waiting) send(500, "text/plain", "no answer\n", {});
      else if (state_ == State::begun) finish();
      Host& host = connection_->host();
      net::post(host.io, [connection = std::move(connection_)] {});
    } catch (...) {  // no memory to say so: the client waits until it goes
    }
  }
  const HttpRequest& request() const override { return request_; }

  void send(int status, std::string_view type, std::string body, Headers headers) override {
    // An answer of no content has no length either (RFC 9110, 8.6).
    if (status != 204) headers.emplace_back("Content-Length", std::to_string(body.size()));
    std::string bytes = head(status, type, headers);
    if (request_.method != "HEAD") bytes += body;
    put(std::move(bytes), true);
    state_ = State::done;
  }

  void begin(int status, std::string_view type, Headers headers) override {
    if (chunked_) headers.emplace_back("Transfer-Encoding", "chunked");
    put(head(status, type, headers), false);
    state_ = State::begun;
  }

  void write(std::string piece) override {
    if (piece.empty() || gone()) return;
    put(chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::move(piece), false);
  }

  void finish() override {
    put(chunked_ ? "0\r\n\r\n" : "", true);
    state_ = State::done;
  }

  bool gone() const override { return connection_->gone(); }

 private:
  enum class State { waiting, begun, done };

  std::string head(int status, std::string_view type, Headers headers) const {
    headers.emplace_back("Connection", keep_alive_ ? "keep-alive" : "close");
    return head_of(status, type, headers) + "\r\n";
  }
  void put(std::string bytes, bool last) { connection_->give(std::move(bytes), last); }

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  const bool chunked_ = !connection_->is_http_1_0();
  const bool keep_alive_ = connection_->keeps_alive();
  State state_ = State::waiting;
};

// What is under way at the socket ends when this time is over.
void Connection::allow(std::chrono::seconds time) {
  too_late_ = false;
  deadline_.expires_after(time);
  deadline_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    // The time may have been set anew after this was due.
    if (error || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
    self->too_late_ = true;
    boost::system::error_code ignored;
    self->socket_.cancel(ignored);
  });
}

// A handler takes as long as it takes. Not a mere cancel(): what was due already looks at the time
// when it comes.
void Connection::allow_any_time() {
  deadline_.expires_at(std::chrono::steady_clock::time_point::max());
}

void Connection::read_request() {
  parser_.emplace();
  parser_->header_limit(kMaxHeader);
  parser_->body_limit(static_cast<uint64_t>(host_.options.max_body));
  // A connection between two requests may wait for longer than one that has begun to ask.
  allow(seconds(host_.options.idle_seconds));
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](boost::system::error_code error, size_t) {
                            if (error) return self->fail_reading(error);
                            self->read_body();
                          });
}

void Connection::read_body() {
  answered_ = false;
  version_ = parser_->get().version();
  keep_alive_ = parser_->keep_alive() && version_ == 11;
  if (const auto length = parser_->content_length();
      length && *length > static_cast<uint64_t>(host_.options.max_body))
    return fail_reading(http::error::body_limit);
  allow(seconds(host_.options.read_seconds));
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    out_.push_back("HTTP/1.1 100 Continue\r\n\r\n");
    if (!writing_) write_next();
  }
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](boost::system::error_code error, size_t) {
                     if (error) return self->fail_reading(error);
                     self->hand_over();
                   });
}

void Connection::fail_reading(const boost::system::error_code& error) {
  const HttpOptions& o = host_.options;
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is longer than {} bytes", o.max_body));
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header is longer than {} bytes", kMaxHeader));
  if (too_late_ && parser_->got_some())
    return refuse(408, fmt::format("the request did not come whole within {} s", o.read_seconds));
  if (error.category() == make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message)
    return refuse(400, fmt::format("this is no HTTP request: {}", error.message()));
  close();
}

void Connection::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  const std::string target(parser_->get().target());
  const std::string body = host_.error_body(status, message, path_of(target));
  put(head_of(status, "application/json",
              {{"Content-Length", std::to_string(body.size())}, {"Connection", "close"}}) +
          "\r\n" + body,
      true);
}

HttpRequest Connection::taken_request() {
  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  request.path = path_of(target);
  for (const auto& field : message)
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  request.body = std::move(message.body());
  request.client = client_;
  return request;
}

void Connection::hand_over() {
  std::shared_ptr<Answer> answer;
  try {
    answer = std::make_shared<Answer>(shared_from_this(), taken_request());
  } catch (const std::bad_alloc&) {
    return refuse(503, "there was no memory for this request; try again later");
  }
  counted_ = true;
  ++host_.open_requests;
  allow_any_time();
  watch_for_end();
  try {
    host_.handler(std::move(answer));
  } catch (...) {  // no memory to refuse it, say: what is not answered says so as it goes
  }
}

// While a request is answered, what comes is the end of the connection or the next request, which
// has to wait.
void Connection::watch_for_end() {
  socket_.async_wait(
      tcp::socket::wait_read, [self = shared_from_this()](boost::system::error_code error) {
        if (self->answered_ || error == net::error::operation_aborted) return;
        char byte = 0;
        boost::system::error_code read;
        self->socket_.non_blocking(true, read);
        const size_t count =
            self->socket_.receive(net::buffer(&byte, 1), tcp::socket::message_peek, read);
        if (error || count == 0) {
          if (read == net::error::would_block) return self->watch_for_end();
          self->gone_ = true;
        }
      });
}

// The list keeps the order: what is posted in the thread of run() may be overtaken by what others
// post after it.
void Connection::give(std::string bytes, bool last) {
  const std::lock_guard lock(given_mutex_);
  given_.emplace_back(std::move(bytes), last);
  try {
    net::post(host_.io, [self = shared_from_this()] { self->take_given(); });
  } catch (...) {  // what nobody will take was not given
    given_.pop_back();
    throw;
  }
}

void Connection::take_given() {
  std::vector<std::pair<std::string, bool>> given;
  {
    const std::lock_guard lock(given_mutex_);
    given.swap(given_);
  }
  for (auto& [bytes, last] : given) put(std::move(bytes), last);
}

void Connection::put(std::string bytes, bool last) {
  if (last) answered_ = true;
  if (!bytes.empty() && !gone_) out_.push_back(std::move(bytes));
  if (!writing_) write_next();
}

void Connection::write_next() {
  if (gone_) return close();
  if (out_.empty()) {
    writing_ = false;
    // Until the next piece there is only the watch, which must not end with the time of this one.
    if (!answered_ && counted_) allow_any_time();
    if (!answered_) return;
    if (std::exchange(counted_, false)) --host_.open_requests;
    if (!keep_alive_ || host_.closing) return close();
    boost::system::error_code ignored;
    socket_.cancel(ignored);  // the watch, before the next read
    return net::post(host_.io, [self = shared_from_this()] { self->read_request(); });
  }
  writing_ = true;
  allow(seconds(host_.options.read_seconds));
  net::async_write(socket_, net::buffer(out_.front()),
                   [self = shared_from_this()](boost::system::error_code error, size_t) {
                     self->out_.pop_front();
                     if (error) self->gone_ = true;
                     self->write_next();
                   });
}

// Who is refused may still be sending; what was sent is read away, since unread bytes would make
// the answer be lost with the connection.
void Connection::close() {
  if (std::exchange(counted_, false)) --host_.open_requests;
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.non_blocking(true, ignored);
  char bytes[4096];
  for (int left = kLingerBytes; left > 0;) {
    const size_t count = socket_.receive(net::buffer(bytes), 0, ignored);
    if (ignored || count == 0) break;
    left -= static_cast<int>(count);
  }
  deadline_.cancel();
  socket_.close(ignored);
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

struct HttpServer::State {
  Host host;
  tcp::acceptor acceptor{host.io};
  net::steady_timer patience{host.io};
  bool accepting = false;

  ~State() {
    host.connection_ended = [] {};
  }

  void accept();
};

void HttpServer::State::accept() {
  if (accepting || host.closing || host.connections >= host.options.max_connections) return;
  acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    accepting = false;
    if (error == net::error::operation_aborted) return;
    if (!error) {
      std::make_shared<Connection>(host, std::move(socket))->read_request();
      return accept();
    }
    // No file descriptor is left, say: that does not change at once.
    patience.expires_after(std::chrono::milliseconds(200));
    patience.async_wait([this](boost::system::error_code) { accept(); });
  });
  accepting = true;
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, ErrorBody error_body)
    : state_(std::make_unique<State>()) {
  state_->host.options = options;
  state_->host.handler = std::move(handler);
  state_->host.error_body = std::move(error_body);
  state_->host.connection_ended = [state = state_.get()] {
    try {
      state->accept();
    } catch (...) {  // a destructor throws nothing; the next one to go tries again
    }
  };
  if (options.port < 0 || options.port > 65535)
    fail_usage("@port is {}; it must be 0 (a free one) to 65535", options.port);
  try {
    tcp::resolver resolver(state_->host.io);
    const tcp::endpoint endpoint =
        resolver.resolve(options.host, std::to_string(options.port))->endpoint();
    state_->acceptor.open(endpoint.protocol());
    state_->acceptor.set_option(net::socket_base::reuse_address(true));
    state_->acceptor.bind(endpoint);
    state_->acceptor.listen();
  } catch (const boost::system::system_error& e) {
    fail("cannot listen on {}:{}: {}; take another @port or @host", printable(options.host),
         options.port, e.code().message());
  }
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

// A connection that there is no memory for ends; the others go on.
void HttpServer::run() {
  const auto work = net::make_work_guard(state_->host.io);
  for (;;) {
    try {
      state_->accept();
      state_->host.io.run();
      return;
    } catch (const std::exception&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void HttpServer::close_door() {
  // Not shared: what was posted lies in the state itself until it is run.
  net::post(state_->host.io, [state = state_.get()] {
    state->host.closing = true;
    boost::system::error_code ignored;
    state->acceptor.close(ignored);
  });
}

void HttpServer::stop() { state_->host.io.stop(); }

int64_t HttpServer::open_requests() const { return state_->host.open_requests; }

}  // namespace moe::serve
