# Turns the sources of the corpus into plain UTF-8 text, one file a domain, each source cut to a
# size, its last 5% held out; or with SIZE into so many bytes of documents, a line of JSON each,
# none of which is like another. Called by corpus.sh; runs on perl-base and gzip alone.
#   perl corpus_clean.pl OUT [SIZE] <SOURCES
# A source is a line `DOMAIN KIND BYTES TITLE`, then a line a file, then an empty one; KIND is a key
# of %clean below.
# The same files give the same bytes on every machine: files come in the order of a hash of their
# path (so that a cut takes something of every part of a package), and whatever is not valid UTF-8
# is left out whole.
use strict;
use warnings;

my ($out, $size) = @ARGV;
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
    : $path =~ /\.[dg]z$/ ? bytes_of($path, 'gzip')
    :                     bytes_of($path);
  return '' unless utf8::decode($text);
  return '' if $text =~ /[^\x{0}-\x{d7ff}\x{e000}-\x{10ffff}]/;    # Emacs has more than Unicode
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

sub new_to_us {
  (my $letters = lc shift) =~ s/[^\w]|_//g;
  # Of a large corpus the beginning has to do: all of it would fill the memory twice.
  return !$seen{$size ? substr $letters, 0, 80 : $letters}++;
}

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

# A page in English: a line with several letters that English has not is one of another language.
sub from_help {
  return join "\n", grep { (() = /[^\x00-\x7f]/g) < 4 } split /\n/, from_html(shift);
}

# Source of a manual page for troff: what it says, a paragraph a line, headings by themselves.
sub from_manual {
  my ($text) = @_;
  my %sign = (qw(aq ' dq " lq " rq " oq ' cq ' em -- en - hy - ha ^ ti ~ rs \\ bu * co), '(c)');
  my ($kept, $open) = ('', 0);
  for my $line (split /\n/, $text) {
    next if $line =~ /^['.]?\\?["#]/ || $line =~ /^['.]\s*\\"/;
    if ($line =~ /^['.]\s*(\w+)\s*(.*)/) {
      my ($macro, $rest) = ($1, $2);
      $rest =~ s/"//g;
      if ($macro =~ /^S[HS]$/) { $kept .= "\n\n$rest\n"; $open = 0; next; }
      if ($macro =~ /^(?:PP|P|LP|TP|IP|HP|RS|RE|sp|TQ)$/) { $kept .= "\n"; $open = 0; }
      next unless $macro =~ /^(?:B|I|BR|BI|IR|IB|RB|RI|SM|SB|MR)$/ && length $rest;
      $line = $macro =~ /^(?:B|I|SM|SB)$/ ? $rest : join '', split /(?<!\\) +/, $rest;
    }
    $kept .= ($open ? ' ' : '') . $line;
    $open = 1;
  }
  $kept =~ s/\\f(?:\(..|\[[^\]]*\]|.)//g;
  $kept =~ s/\\s[-+]?\d|\\\*(?:\(..|\[\w+\]|.)//g;
  $kept =~ s/\\\((..)|\\\[(..)\]/$sign{$1 \/\/ $2} \/\/ ''/ge;
  $kept =~ s/\\[\/,&|^:%c]//g;
  $kept =~ s/\\e/\\/g;
  $kept =~ s/\\([-.' ~])/$1 eq '~' ? ' ' : $1/ge;
  return join "\n",
    grep { s/ +/ /g; s/^ | $//g; length && (length() < 30 || new_to_us($_)) }
    split /\n/, plain_marks($kept);
}

# Perl's documentation: its marks of emphasis go, its examples stay.
sub from_pod {
  my ($text) = @_;
  $text =~ s/^=(?:encoding|over|back|begin|end|for|cut|pod)\b[^\n]*\n//gm;
  $text =~ s/^=(?:head\d|item) *//gm;
  1 while $text =~ s/\b[BICFLSX](?:<<+ (.*?) >>+|<([^<>]*)>)/$1 \/\/ $2/gse;
  $text =~ s/E<(\w+)>/{ lt => '<', gt => '>' }->{$1} \/\/ ' '/ge;
  $text =~ s/(?<=[^\s])\n(?=[^\s])/ /g;
  return from_code($text);
}

# A dictionary of dictd: an entry is a headword with what is set in below it.
sub from_dictionary {
  my ($text) = @_;
  $text =~ s/\A.*?\n(?=\S[^\n]*\n +\S)//s;
  $text =~ s/ *\[(?:1913 Webster|Webster 1913 Suppl\.|PJC|WordNet 1\.\d\+?)[^\]\n]*\]//g;
  $text =~ s/^ see: .*\n//gm;
  $text =~ s/[{}]//g;
  $text =~ s/ \/[^\n\/]*\/(?=[ \n])//g;
  $text =~ s/^ +/ /gm;
  $text =~ s/[ \t]+$//gm;
  $text =~ s/\n{2,}/\n\n/g;
  return $text;
}

# Lines of Lisp's comments that speak of the licence, up to the first expression.
sub from_lisp {
  my ($text) = @_;
  $text =~ s/^;[^\n]*-\*-[^\n]*\n//;
  my $legal = qr/Copyright|GNU|WARRANTY|License|distributed/;
  my $head = $text =~ s/\A((?:\s*;[^\n]*\n)+)// ? $1 : '';
  $head =~ s/^;.*$legal.*\n//gm;
  return from_code($head . $text);
}

my %clean = (
  help       => \&from_help,
  manual     => \&from_manual,
  pod        => \&from_pod,
  dictionary => \&from_dictionary,
  lisp       => \&from_lisp,
  translated => \&from_translated,
  prose      => \&from_prose,
  scripture  => \&from_scripture,
  code       => \&from_code,
);
my $held_out = 50;         # of so many documents one, by a hash of its content
my $longest = 32 << 10;    # bytes of a document; what is longer is cut at the ends of lines

# Cleaned files of a source in an order that any cut takes something of every part of.
sub each_text {
  my ($kind, $files, $use) = @_;
  my %key = map { $_ => hash_of($_) } @$files;
  for my $file (sort { $key{$a} <=> $key{$b} || $a cmp $b } @$files) {
    my $text = $clean{$kind}->(do { local $/; text_of($file) });
    utf8::encode($text);
    $text =~ s/\s+\z//;
    last unless $use->($text);
  }
}

sub write_file {
  my ($path, @text) = @_;
  open my $file, '>', $path or die "corpus_clean.pl: $path: $!\n";
  print $file @text;
  close $file or die "corpus_clean.pl: $path: $!\n";
}

# The default corpus.
sub write_text {
  my %parts;    # of each domain, training and held-out text
  for my $source (@_) {
    my ($domain, $kind, $budget, undef, @files) = @$source;
    my $all = '';
    each_text($kind, \@files, sub {
      $all .= "$_[0]\n\n" if length $_[0] >= 200;
      return length $all < $budget;
    });
    # Both cuts fall behind a line's end, so that no character and no line is split.
    $all = substr $all, 0, 1 + rindex($all, "\n", $budget - 1) if length $all > $budget;
    my $cut = 1 + rindex $all, "\n", int(0.95 * length $all);
    $parts{$domain}[0] .= substr $all, 0, $cut;
    $parts{$domain}[1] .= substr $all, $cut;
  }
  for my $domain (keys %parts) {
    write_file("$out/" . ('train', 'valid')[$_] . "/$domain.txt", $parts{$domain}[$_]) for 0, 1;
  }
}

# A document that mostly says what others have said already is left out: editions of one another,
# and files of code that differ in a few names. What it says are its lines of 30 bytes or more.
my %said;
sub is_new {
  my ($text) = @_;
  my ($all, $known, @lines) = (0, 0);
  for my $line (split /\n/, $text) {
    $line =~ s/^\s+//;
    next if length $line < 30;
    my $key = substr $line, 0, 60;
    $all += length $line;
    $known += length $line if $said{$key};
    push @lines, $key;
  }
  return 0 if 2 * $known > $all;
  @said{@lines} = (1) x @lines;
  return 1;
}

sub documents_of {
  my ($text) = @_;
  my @documents;
  while (length $text > $longest) {
    my $cut = rindex $text, "\n\n", $longest;
    $cut = rindex $text, "\n", $longest if $cut < $longest / 2;
    $cut = $longest if $cut <= 0;
    push @documents, substr $text, 0, $cut, '';
    $text =~ s/\A\n+//;
  }
  return grep { length >= 200 && is_new($_) } @documents, $text;
}

sub as_json {
  my ($text) = @_;
  $text =~ s/(["\\])/\\$1/g;
  $text =~ s/\n/\\n/g;
  $text =~ s/\t/\\t/g;
  $text =~ s/[\x00-\x1f]/ /g;
  return "{\"text\": \"$text\"}\n";
}

# The most bytes of any source, so that all of them together have $size.
sub level_of {
  my ($left, @sizes) = ($size, sort { $a <=> $b } @_);
  while (@sizes) {
    my $even = int($left / @sizes);
    return $even if $sizes[0] >= $even;
    $left -= shift @sizes;
  }
  return undef;
}

# The large corpus: small sources whole, large ones to a level.
sub write_documents {
  my @found;    # of each source, its documents
  for my $source (@_) {
    my ($domain, $kind, $budget, $title, @files) = @$source;
    my ($bytes, @documents) = (0);
    # More than eight sources are large, so none gives more than this.
    $budget = $size / 8 if $budget > $size / 8;
    each_text($kind, \@files, sub {
      for my $document (documents_of($_[0])) {
        last if $bytes >= $budget;
        push @documents, $document;
        $bytes += length $document;
      }
      return $bytes < $budget;
    });
    die "corpus_clean.pl: no text in $title\n" unless $bytes;
    push @found, [$domain, $title, $bytes, @documents];
  }
  my $all = 0;
  $all += $_->[2] for @found;
  my $level = level_of(map { $_->[2] } @found) // die
    "corpus_clean.pl: there are $all bytes in these packages, and $size are asked for\n";
  my (%parts, $list);
  for my $source (@found) {
    my ($domain, $title, undef, @documents) = @$source;
    my ($bytes, $count) = (0, 0);
    for my $document (@documents) {
      last if $bytes >= $level;
      my $part = hash_of(length($document) . substr($document, 0, 400)) % $held_out == 0 ? 1 : 0;
      $parts{$domain}[$part] .= as_json($document);
      $bytes += length $document;
      $count++;
    }
    $list .= sprintf "%-10s %6d documents %10d bytes  %s\n", $domain, $count, $bytes, $title;
  }
  for my $domain (keys %parts) {
    write_file("$out/" . ('train', 'valid')[$_] . "/$domain.jsonl", $parts{$domain}[$_] // '')
      for 0, 1;
  }
  write_file("$out/sources.txt", $list);
}

my @sources;
{
  local $/ = '';
  while (my $source = <STDIN>) {
    my ($head, @files) = split /\n/, $source;
    push @sources, [split(/ /, $head, 4), @files];
  }
}
if ($size) { write_documents(@sources) }
else { write_text(@sources) }
