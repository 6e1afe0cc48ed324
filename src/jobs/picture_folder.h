// A folder that charts are written into as pictures of their own.
#pragma once

#include <string>

#include "analyze/pictures/report_pictures.h"

namespace moe {

// Fails where the folder cannot be made: asked before the work whose pictures it gets. Nothing
// where the name is empty.
void make_picture_folder(const std::string& folder);
void write_pictures(const std::string& folder, const Pictures&);

}  // namespace moe
