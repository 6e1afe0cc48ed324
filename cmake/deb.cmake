# Debian packages by `cpack -G DEB`; scripts/deb.sh configures, builds and checks them. Off
# elsewhere: what follows is installed for packages alone.
# The names have -cpp in them, since Debian has a libmoe of its own, for character sets.
option(MOE_DEB "Install what Debian packages need beside the program (scripts/deb.sh)" OFF)
if(NOT MOE_DEB)
  return()
endif()
set(MOE_DEB_RELEASE 1 CACHE STRING "What follows the version in a package's: 1+deb12")

set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(deb_command moe-cpp)
set(deb_library libmoe-cpp${soversion})
set(deb_development libmoe-cpp-dev)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME moe-cpp)
set(CPACK_PACKAGE_CONTACT "moe.cpp maintainers <maintainers@users.noreply.a-seed-25cd8561.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL command library development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE ${MOE_DEB_RELEASE})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Mixture-of-Experts language models on the CPU")
set(about "It needs no Python and no accelerator. The same router and expert code trains,
evaluates and generates, and every routing recipe has its formula, its losses
and its source.")
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME ${deb_command})
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION
  "The command moe trains, converts, evaluates, inspects and runs
Mixture-of-Experts language models on the CPU.\n\n${about}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${deb_library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "This is the shared library, libmoe.so.${soversion}, with its C interface.\n\n${about}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME ${deb_development})
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "${deb_library} (= ${PROJECT_VERSION}-${MOE_DEB_RELEASE})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_CONFLICTS libmoe-dev)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Headers for C and C++, and what find_package(moe) and pkg-config ask for.\n\n${about}")

# Each package has its copyright and, compressed, its changelog; the manual page is compressed too.
# The library's package says what a program that links it needs, and has the cache of libraries
# brought up to date.
find_program(GZIP gzip REQUIRED)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(papers ${CMAKE_CURRENT_BINARY_DIR}/debian)
configure_file(share/debian/changelog.in ${papers}/changelog.Debian @ONLY)
file(WRITE ${papers}/shlibs "libmoe ${soversion} ${deb_library} (>= ${PROJECT_VERSION})\n")
file(WRITE ${papers}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${papers}/shlibs;${papers}/triggers")
configure_file(share/debian/copyright ${papers}/copyright COPYONLY)
execute_process(COMMAND ${GZIP} -9nf ${papers}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
foreach(component command library development)
  install(FILES ${papers}/copyright ${papers}/changelog.Debian.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${deb_${component}} COMPONENT ${component})
endforeach()
# A unit that runs `moe serve` as a service.
install(FILES share/systemd/moe-serve@.service DESTINATION /usr/lib/systemd/system COMPONENT command)
set(manual "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1/moe.1")
install(CODE
  "execute_process(COMMAND ${GZIP} -9nf \"${manual}\" COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT command)
include(CPack)
