// A client of HTTP/1.1 over a plain socket, so that a test says each byte that it sends.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

namespace moe::test {

struct HttpReply {
  int status = 0;  // 0: the connection ended before an answer
  std::string head, body;
};

class HttpClient {
 public:
  explicit HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval limit{20, 0};  // no test waits for ever
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t count = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (count <= 0) return;
      at += static_cast<size_t>(count);
    }
  }
  // The next answer, its chunks put together. `bodiless`: to HEAD.
  HttpReply receive(bool bodiless = false) {
    HttpReply reply;
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return reply;
    reply.head = take(end + 4);
    reply.status = std::atoi(reply.head.c_str() + sizeof("HTTP/1.1 ") - 1);
    if (bodiless || reply.status == 100 || reply.status == 204) return reply;
    if (reply.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      for (;;) {
        while ((end = buffer_.find("\r\n")) == std::string::npos)
          if (!more()) return reply;
        const size_t size = std::strtoul(take(end + 2).c_str(), nullptr, 16);
        while (buffer_.size() < size + 2)
          if (!more()) return reply;
        reply.body += take(size + 2).substr(0, size);
        if (size == 0) return reply;
      }
    }
    const size_t length = reply.head.find("Content-Length: ");
    const size_t size = length == std::string::npos
                            ? SIZE_MAX
                            : std::strtoul(reply.head.c_str() + length + 16, nullptr, 10);
    while (buffer_.size() < size)
      if (!more()) break;
    reply.body = take(std::min(size, buffer_.size()));
    return reply;
  }
  HttpReply ask(const std::string& method, const std::string& path, const std::string& body = "",
                const std::string& headers = "") {
    send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" +
         body);
    return receive(method == "HEAD");
  }
  // Whatever came until the other side closed.
  bool ended() {
    while (more()) {
    }
    return buffer_.empty();
  }
  // Waits for some more bytes; false: there are none.
  bool more() {
    char bytes[4096];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

 private:
  std::string take(size_t count) {
    std::string taken = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return taken;
  }

  int socket_;
  std::string buffer_;
};

}  // namespace moe::test
