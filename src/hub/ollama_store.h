// Models that Ollama has fetched, as ollama:NAME[:TAG], ollama:OWNER/NAME[:TAG] or
// ollama:HOST/OWNER/NAME[:TAG]. Each is one GGUF file, called by its hash.
// Layout (github ollama/ollama): manifests/HOST/OWNER/NAME/TAG lists layers, of which one is the
// model; blobs/sha256-HEX are what they hold.
#pragma once

#include <string>
#include <string_view>

namespace moe {

constexpr std::string_view kOllamaPrefix = "ollama:";

// ${OLLAMA_MODELS}, else ~/.ollama/models, else where the service of Linux keeps them.
std::string ollama_store();
// The file. Fails where it is not there, with the command that fetches it.
std::string find_in_ollama(const std::string& model);

}  // namespace moe
