#include "serve/caller.h"

#include <array>

namespace moe::serve {
namespace {

bool same_secret(std::string_view a, std::string_view b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned char>(a[i]) ^
                 static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return different == 0;
}

std::array<std::string_view, 2> said_keys(const HttpRequest& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view bearer = request.header("authorization");
  return {bearer.starts_with(kBearer) ? bearer.substr(kBearer.size()) : "",
          request.header("x-api-key")};
}

}  // namespace

std::string_view key_of(const HttpRequest& request, const std::vector<std::string>& keys) {
  std::string_view known;
  for (const std::string_view said : said_keys(request))
    for (const std::string& key : keys)
      if (same_secret(said, key)) known = key;
  return known;
}

std::string client_of(const HttpRequest& request, const std::vector<std::string>& keys) {
  if (!keys.empty()) return std::string(key_of(request, keys));
  for (const std::string_view said : said_keys(request))
    if (!said.empty()) return std::string(said);
  return request.client;
}

}  // namespace moe::serve
