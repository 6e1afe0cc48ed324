# Turns share/presets/*.json into one generated source, so that the command works from wherever it
# is copied to.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/share/presets/*.json)
set(preset_rows "")
foreach(preset_file ${preset_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_file})
  get_filename_component(preset_name ${preset_file} NAME_WE)
  file(READ ${preset_file} preset_text)
  string(APPEND preset_rows "    {\"${preset_name}\", R\"json(${preset_text})json\"},\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/presets.cpp CONTENT
"#include \"jobs/presets.h\"

namespace moe {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = {
${preset_rows}  };
  return table;
}

}  // namespace moe
")
target_sources(moe_jobs PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/presets.cpp)
