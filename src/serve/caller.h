// Who asks: the key that lets a request in, and by what clients are told apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/http_server.h"

namespace moe::serve {

// The one of `keys` that a request has, as Authorization: Bearer KEY or as X-Api-Key: KEY; empty:
// none of them. Takes as long whatever it has, so that a key cannot be found out byte by byte.
std::string_view key_of(const HttpRequest&, const std::vector<std::string>& keys);

// Who has a key is one client wherever it asks from, and however it says the key. Only the key that
// let it in counts: with another header of its choice it would be as many clients as it likes. A
// server without keys believes what is said, and takes the address where nothing is.
std::string client_of(const HttpRequest&, const std::vector<std::string>& keys);

}  // namespace moe::serve
