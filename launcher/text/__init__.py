"""Text for people, made from values (pure): failure reports, quoted commands, output made safe for a terminal."""
