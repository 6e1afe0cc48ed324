# libmoe.so with its C interface, and what `cmake --install` puts where.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(moe_shared SHARED $<TARGET_OBJECTS:moe_api>)
# The folders are inside it: who links it needs none of their headers or libraries.
target_link_libraries(moe_shared PRIVATE $<BUILD_INTERFACE:moe_jobs>)
set_target_properties(moe_shared PROPERTIES
  OUTPUT_NAME moe
  EXPORT_NAME moe
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_link_options(moe_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_include_directories(moe_shared INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# What is installed, and no tests or benchmarks. `cmake --install` builds nothing and copies file
# after file: a part that is missing is met before the first.
add_custom_target(moe_package)
add_dependencies(moe_package moe moe_shared)
set_property(TARGET moe_package PROPERTY parts
  $<TARGET_FILE:moe> $<TARGET_FILE:moe_shared>
  $<TARGET_SONAME_FILE:moe_shared> $<TARGET_LINKER_FILE:moe_shared>)
if(MOE_HAS_MPI)
  add_dependencies(moe_package moe_mpi)
  set_property(TARGET moe_package APPEND PROPERTY parts $<TARGET_FILE:moe_mpi>)
endif()
set(build_it "cmake --build ${CMAKE_BINARY_DIR} --target moe_package")
install(CODE "set(parts \"$<GENEX_EVAL:$<TARGET_PROPERTY:moe_package,parts>>\")
foreach(part IN LISTS parts)
  if(NOT EXISTS \"\${part}\")
    message(FATAL_ERROR
      \"\${part} is not built yet, and nothing was installed; first run: ${build_it}\")
  endif()
endforeach()" ALL_COMPONENTS)

# Components: the command with its manual page and completions, the library, and what compiling
# against it takes.
install(TARGETS moe RUNTIME COMPONENT command)
if(MOE_HAS_MPI)
  install(TARGETS moe_mpi LIBRARY DESTINATION lib/moe COMPONENT mpi)
endif()
install(TARGETS moe_shared EXPORT moe LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY include/moe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/moe)
install(EXPORT moe FILE moeTargets.cmake NAMESPACE moe::
  DESTINATION ${package} COMPONENT development)
set(package_files ${CMAKE_CURRENT_BINARY_DIR}/package)
file(WRITE ${package_files}/moeConfig.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/moeTargets.cmake)\n")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${package_files}/moeConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${package_files}/moeConfig.cmake ${package_files}/moeConfigVersion.cmake
  DESTINATION ${package} COMPONENT development)

# ${pcfiledir} is where the file lies, so a moved prefix still works.
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/moe.pc.in ${package_files}/moe.pc @ONLY)
install(FILES ${package_files}/moe.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
