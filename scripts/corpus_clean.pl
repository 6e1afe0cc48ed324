# Turns the sources of the corpus into plain UTF-8 text, one file a domain, each source cut to a
# size, its last 5% held out. Called by corpus.sh; runs on perl-base and gzip alone.
#   perl corpus_clean.pl OUT <SOURCES
# A source is a line `DOMAIN KIND BYTES`, then a line a file, then an empty one; KIND is a key of
# %clean below.
# The same files give the same bytes on every machine: files come in the order of a hash of their
# path (so that a cut takes something of every part of a package), and whatever is not valid UTF-8
# is left out whole.
use strict;
use warnings;

my ($out) = @ARGV;
my %entity = (
  amp => '&', lt => '<', gt => '>', quot => '"', apos => "'", nbsp => ' ',
  mdash => "\x{2014}", ndash => "\x{2013}",
);
# Paragraphs already taken: pages repeat their headers, editions one another, and a repeat in the
# held-out part would flatter a model.
my %seen;

sub hash_of {    # FNV-1a, 32 bits
  my $hash = 2166136261;
  $hash = (($hash ^ ord) * 16777619) & 0xffffffff for split //, shift;
  return $hash;
}

sub bytes_of {
  my ($path, $gzip) = @_;
  my @gzip = ('-|', 'sh', '-c', 'exec gzip -dc <"$0" 2>/dev/null', $path);
  my @open = $gzip ? @gzip : ('<', $path);
  open my $in, shift @open, @open or die "corpus_clean.pl: cannot read $path: $!\n";
  binmode $in;
  local $/;
  return <$in> // '';
}

# A zlib stream of a known content length. perl-base has no zlib, but gzip reads the same stream
# behind its own header; the trailer it then misses is what its exit status and its complaint are
# about.
sub inflate {
  my ($stream, $length) = @_;
  open my $file, '>', "$out/stream.gz" or die "corpus_clean.pl: $out/stream.gz: $!\n";
  binmode $file;
  print $file "\x1f\x8b\x08\0\0\0\0\0\0\3", substr $stream, 2;
  close $file;
  my $bytes = bytes_of("$out/stream.gz", 'gzip');
  unlink "$out/stream.gz";
  my $got = length $bytes;
  die "corpus_clean.pl: a stream of $got bytes where the package says $length\n"
    unless $got == $length;
  return $bytes;
}

# The longest vector of strings in an R object as saveRDS writes it (XDR): its elements are the
# lines of a book, or all of it.
sub r_strings {
  my ($object) = @_;
  my $longest = '';
  # STRSXP, its count, and a CHARSXP next.
  while ($object =~ /\0\0[\0\x02]\x10(.{4})(?=\0.[\0\x40\x80]\x09)/gs) {
    my ($count, $at, @strings) = (unpack('N', $1), pos $object);
    for (1 .. $count) {
      my ($type, $length) = unpack "x$at N N", $object;
      last if ($type & 0xff) != 9 || $length > length $object;
      push @strings, substr $object, $at + 8, $length;
      $at += 8 + $length;
    }
    pos($object) = $at;
    my $text = join "\n", @strings;
    $longest = $text if length $text > length $longest;
  }
  return $longest;
}

# An R package's data: an index of (offset, length) pairs beside a file of zlib streams, each behind
# its content's length.
sub r_database {
  my ($path) = @_;
  my ($data, $text) = (bytes_of($path), '');
  (my $index = $path) =~ s/b$/x/;
  my $pairs = bytes_of($index, 'gzip');
  while ($pairs =~ /\0\0\0\x0d\0\0\0\x02(.{4})(.{4})/gs) {    # INTSXP of two
    my ($at, $length) = (unpack('N', $1), unpack 'N', $2);
    my $size = unpack "x$at N", $data;
    $text .= r_strings(inflate(substr($data, $at + 4, $length - 4), $size)) . "\n\n";
  }
  return $text;
}

# A SWORD module: an index of (offset, length, content's length), little-endian, beside a file of
# zlib streams.
sub sword_module {
  my ($path) = @_;
  my ($data, $text) = (bytes_of($path), '');
  (my $index = $path) =~ s/z$/s/;
  my @numbers = unpack 'V*', bytes_of($index);
  while (my ($at, $length, $content) = splice @numbers, 0, 3) {
    $text .= inflate(substr($data, $at, $length), $content) . "\n" if $length;
  }
  return $text;
}

sub text_of {
  my ($path) = @_;
  my $text =
      $path =~ /\.rdb$/ ? r_database($path)
    : $path =~ /\.rda$/ ? r_strings(bytes_of($path, 'gzip'))
    : $path =~ /\.bzz$/ ? sword_module($path)
    : $path =~ /\.gz$/  ? bytes_of($path, 'gzip')
    :                     bytes_of($path);
  return '' unless utf8::decode($text);
  $text =~ s/\r\n?/\n/g;
  $text =~ s/\x{feff}//g;
  $text =~ s/[^\S\n\t]/ /g;
  $text =~ s/[\x00-\x08\x0b-\x1f\x7f-\x9f\x{ad}\x{200b}-\x{200f}]//g;
  return $text;
}

# As one types: a prompt's straight quote must be the one that the model has read.
sub plain_marks {
  my ($text) = @_;
  $text =~ s/[\x{2018}\x{2019}]/'/g;
  $text =~ s/[\x{201c}\x{201d}\x{201e}]/"/g;
  $text =~ s/\s*\x{2014}\s*|--+/--/g;
  $text =~ s/\x{2013}/-/g;
  $text =~ s/\x{2026}/.../g;
  return $text;
}

sub new_to_us { (my $letters = lc shift) =~ s/[^\w]|_//g; return !$seen{$letters}++; }

# One paragraph a line; navigation, listings and anything shorter than a sentence dropped.
sub from_html {
  my ($text) = @_;
  $text =~ s/\s+/ /g;
  $text =~ s/<!--.*?-->//g;
  $text =~ s/<(head|script|style|nav|footer|aside|header|pre|form)\b.*?<\/\1>/\n/gi;
  $text =~ s/<\/?(?:br|p|div|h\d|li|ul|ol|tr|td|th|dt|dd|table|section|body)\b[^>]*>/\n/gi;
  $text =~ s/<[^>]*>//g;
  $text =~ s/&#(\d+);/chr $1/ge;
  $text =~ s/&#x([0-9a-f]+);/chr hex $1/gei;
  $text =~ s/&(\w+);/$entity{$1} \/\/ ' '/ge;
  my @kept;
  for my $line (split /\n/, plain_marks($text)) {
    $line =~ s/[ \xa0]+/ /g;
    $line =~ s/^ | $|\x{b6}//g;
    push @kept, $line
      if length $line >= 50
      && $line =~ /[.:!?]/
      && $line !~ /\bnot found\]/
      && new_to_us($line);
  }
  return join "\n", @kept;
}

# Translations are rarely complete: a line with three of English's commonest words is one that was
# left in English.
sub from_translated {
  return join "\n",
    grep { (() = /\b(?:the|of|and|is|that|with|are|for|this|you|be|it)\b/gi) < 3 }
    split /\n/, from_html(shift);
}

# One paragraph a line, so that the model need not learn where a printer broke his lines; what the
# digitisers added, tables of contents and marks of emphasis go. Only headings may be short.
sub from_prose {
  my ($text) = @_;
  $text =~ s/\A.*?\*\*\* ?START OF (?:THE|THIS) [^\n]*//s;
  $text =~ s/\*\*\* ?END OF (?:THE|THIS) .*//s;
  $text =~ s/\[(?:Illustration|Footnote)[^\]]*\]//g;
  $text =~ s/_//g;
  my @kept;
  for my $paragraph (split /\n[ \t]*\n\s*/, plain_marks($text)) {
    $paragraph =~ s/\s+/ /g;
    $paragraph =~ s/^ | $//g;
    next if $paragraph !~ /[a-z]/i;
    next if $paragraph =~ /gutenberg|e-?text|e-?book|produced by|copyright|transcriber/i;
    next if (() = $paragraph =~ /\bchapter\b/gi) > 2;
    next if (() = $paragraph =~ /\b[A-Z][A-Z']+\b/g) > 12;
    push @kept, $paragraph
      if $paragraph =~ /^(?:chapter|volume|book|part|adventure)\b/i
      || ($paragraph =~ /[.!?,;:"')-]$/ && new_to_us($paragraph));
  }
  return join "\n", @kept;
}

# Marked-up scripture: a paragraph a line, notes and titles of books dropped.
sub from_scripture {
  my ($text) = @_;
  $text =~ s/<note\b.*?<\/note>|<title\b.*?<\/title>//gs;
  $text =~ s/\s+/ /g;
  $text =~ s/<(?:div|chapter|lg|l)\b[^>]*>/\n/g;
  $text =~ s/<[^>]*>//g;
  $text =~ s/&(\w+);/$entity{$1} \/\/ ' '/ge;
  $text =~ s/\x{b6} ?//g;
  return join "\n",
    grep { s/ +/ /g; s/^ | $//g; length && new_to_us($_) }
    split /\n/, plain_marks($text);
}

# The licence at the head of a file is the same text hundreds of times: the leading comment goes
# when it speaks of one.
sub from_code {
  my ($text) = @_;
  my $line = qr{\s*(?://|\#(?!include|if|def|pragma|!))[^\n]*\n};
  my $block = qr{\s*/\*.*?\*/[^\n]*\n}s;
  while ($text =~ s{\A((?:$line)+|$block)}{}s) {
    my $comment = $1;
    next if $comment =~ /copyright|licen[cs]e|warranty/i;
    $text = $comment . $text;
    last;
  }
  $text =~ s/[ \t]+$//gm;
  $text =~ s/^.{160,}\n//gm;
  # Columns of aligned text, and lines set far to the right, teach a small model to write blanks.
  $text =~ s/(?<=\S)[ \t]{3,}/  /g;
  $text =~ s/^(?: {4}){5,}(?= *\S)/' ' x 20/gme;
  $text =~ s/\n{3,}/\n\n/g;
  $text =~ s/\A\n+//;
  return $text;
}

my %clean = (
  translated => \&from_translated,
  prose      => \&from_prose,
  scripture  => \&from_scripture,
  code       => \&from_code,
);
my %parts;    # of each domain, training and held-out text
$/ = '';
while (my $source = <STDIN>) {
  my ($head, @files) = split /\n/, $source;
  my ($domain, $kind, $budget) = split / /, $head;
  my %key = map { $_ => hash_of($_) } @files;
  my $all = '';
  for my $file (sort { $key{$a} <=> $key{$b} || $a cmp $b } @files) {
    my $text = $clean{$kind}->(do { local $/; text_of($file) });
    utf8::encode($text);
    $text =~ s/\s+\z//;
    $all .= "$text\n\n" if length $text >= 200;
    last if length $all >= $budget;
  }
  # Both cuts fall behind a line's end, so that no character and no line is split.
  $all = substr $all, 0, 1 + rindex($all, "\n", $budget - 1) if length $all > $budget;
  my $cut = 1 + rindex $all, "\n", int(0.95 * length $all);
  $parts{$domain}[0] .= substr $all, 0, $cut;
  $parts{$domain}[1] .= substr $all, $cut;
}
for my $domain (keys %parts) {
  for my $part (0, 1) {
    my $path = "$out/" . ('train', 'valid')[$part] . "/$domain.txt";
    open my $file, '>', $path or die "corpus_clean.pl: $path: $!\n";
    print $file $parts{$domain}[$part];
    close $file or die "corpus_clean.pl: $path: $!\n";
  }
}
