// Adding to the end of a file that stays the one it is: links, permissions and what others append
// are kept.
#pragma once

#include <string>
#include <string_view>

namespace moe {

// All of `text`, or nothing of it; `path` and `way_out` are for the message. `fd` is open for
// appending, and nobody else appends meanwhile.
void append_all(int fd, std::string_view text, const std::string& path, std::string_view way_out);

// A line with its newline, behind one that ends the line before; makes the file where there is
// none. Two processes may do so at once.
void append_line(const std::string& path, std::string_view line);

}  // namespace moe
